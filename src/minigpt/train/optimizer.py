"""AdamW with decoupled weight decay on matrices, and the learning-rate schedules."""

from typing import Any

import jax
import optax

from minigpt.config import OptimizerConfig

DECAYED = ("kernel", "embedding")


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate by update number (from 0): linear warm-up, then the configured fall.

    The first update uses ``learning_rate / (warmup_steps + 1)``, not 0, so that it is not lost.
    """
    peak, last, warmup = config.learning_rate, config.min_learning_rate, config.warmup_steps
    falling = max(1, steps - warmup)
    if config.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, falling, alpha=last / peak)
    elif config.schedule == "linear":
        after = optax.linear_schedule(peak, last, falling)
    else:
        after = optax.constant_schedule(peak)
    rising = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    return optax.join_schedules([rising, after], [warmup])


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter 2019); the caller clips."""
    return optax.adamw(
        learning_rate_schedule(config, steps),
        b1=config.beta1,
        b2=config.beta2,
        weight_decay=config.weight_decay,
        mask=decay_mask,
    )


def decay_mask(params: Any) -> Any:  # noqa: ANN401 - a tree of parameters
    """True for matrices. By name: stacked layers give biases two dimensions as well."""

    def is_matrix(path: tuple[Any, ...], _: jax.Array) -> bool:
        name = str(getattr(path[-1], "key", path[-1]))
        return name.endswith(DECAYED)

    return jax.tree_util.tree_map_with_path(is_matrix, params)
