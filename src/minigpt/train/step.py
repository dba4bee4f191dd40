"""One optimizer step: microbatches, one normalisation, one clip, one update."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from minigpt.config import Config
from minigpt.data.batches import Batch
from minigpt.model.gpt import GPTSpec
from minigpt.train.gradients import ParallelModel
from minigpt.train.optimizer import learning_rate_schedule, make_optimizer
from minigpt.train.state import Params, StateLayout, TrainState, state_shapes

COMPILER_OPTIONS: dict[str, dict[str, bool | int | str]] = {
    # Collectives are asynchronous of themselves; this one lets them run beside what does not need
    # their result yet.
    "gpu": {"xla_gpu_enable_latency_hiding_scheduler": True},
}
"""Of the training step, by platform of the devices."""


class StepMetrics(NamedTuple):
    """Scalars of one step, on the device.

    Attributes:
        loss: mean cross-entropy over the valid targets of the global batch, in nats.
        grad_norm: norm of the whole gradient before clipping.
        learning_rate: of this step's update.
        num_tokens: valid targets.
    """

    loss: jax.Array
    grad_norm: jax.Array
    learning_rate: jax.Array
    num_tokens: jax.Array


class HostMetrics(NamedTuple):
    """``StepMetrics`` after it was read back."""

    loss: float
    grad_norm: float
    learning_rate: float
    num_tokens: float


def make_train_step(config: Config, spec: GPTSpec, layout: StateLayout) -> jax.stages.Wrapped:
    """The jitted step ``(state, batch) -> (state, metrics)``; it consumes the state passed in."""
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    schedule = learning_rate_schedule(config.optimizer, config.train.steps)
    model = ParallelModel(config, spec, layout)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        found = model.gradients(state.params, batch, state.step)
        gradients, loss, num_tokens, grad_norm = found
        with jax.named_scope("optimizer"):
            if config.optimizer.clip_norm > 0:
                scale = jnp.minimum(1.0, config.optimizer.clip_norm / grad_norm)
                gradients = jax.tree.map(lambda gradient: gradient * scale, gradients)
            updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
            params = cast("Params", optax.apply_updates(state.params, updates))
        metrics = StepMetrics(loss, grad_norm, jnp.asarray(schedule(state.step)), num_tokens)
        return TrainState(state.step + 1, params, opt_state), metrics

    # Spelt out, or a second program is compiled for shardings that are spelt differently.
    shardings = layout.shardings(state_shapes(spec, optimizer, layout))
    return jax.jit(
        train_step,
        donate_argnums=0,
        out_shardings=(shardings, None),
        compiler_options=COMPILER_OPTIONS.get(layout.mesh.devices.flat[0].platform),
    )


def make_eval_step(config: Config, spec: GPTSpec, layout: StateLayout) -> jax.stages.Wrapped:
    """The jitted ``(params, batch[, num_counted]) -> (summed loss, valid targets)``, no dropout."""
    return jax.jit(ParallelModel(config, spec, layout).loss_sum)
