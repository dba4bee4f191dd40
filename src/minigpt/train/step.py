"""One optimizer step: microbatches, one normalisation, one clip, one update."""

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from minigpt.config import Config
from minigpt.data.batches import Batch
from minigpt.model.gpt import GPTSpec
from minigpt.model.loss import target_weights
from minigpt.train.optimizer import learning_rate_schedule, make_optimizer
from minigpt.train.state import Params, TrainState, model_graph


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


def make_train_step(config: Config, spec: GPTSpec) -> jax.stages.Wrapped:
    """The jitted step ``(state, batch) -> (state, metrics)``; the state passed in is consumed."""
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    schedule = learning_rate_schedule(config.optimizer, config.train.steps)
    gradients_of = make_gradients(config, spec)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        gradients, loss, num_tokens = gradients_of(state.params, batch, state.step)
        grad_norm = optax.tree.norm(gradients)
        if config.optimizer.clip_norm > 0:
            scale = jnp.minimum(1.0, config.optimizer.clip_norm / grad_norm)
            gradients = jax.tree.map(lambda gradient: gradient * scale, gradients)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = cast("Params", optax.apply_updates(state.params, updates))
        metrics = StepMetrics(loss, grad_norm, jnp.asarray(schedule(state.step)), num_tokens)
        return TrainState(state.step + 1, params, opt_state), metrics

    return jax.jit(train_step, donate_argnums=0)


def make_gradients(
    config: Config, spec: GPTSpec
) -> Callable[[Params, Batch, jax.Array], tuple[Params, jax.Array, jax.Array]]:
    """``(params, batch, step) -> (float32 gradients of the mean loss, mean loss, valid targets)``.

    Microbatches are visited one after the other and their gradients of the *summed* loss added
    up; the division by the number of valid targets of the whole batch comes once, at the end, so
    that rows with more valid targets weigh more, however the batch is cut.
    """
    graph = model_graph(spec)
    num_microbatches = config.parallel.microbatches
    root_key = jax.random.key(config.train.seed)

    def loss_sum(params: Params, batch: Batch, keys: jax.Array | None) -> jax.Array:
        weights = target_weights(batch.lengths, batch.tokens.shape[1] - 1)
        return nnx.merge(graph, params).loss_sum(batch.tokens, weights, keys)

    def gradients(
        params: Params, batch: Batch, step: jax.Array
    ) -> tuple[Params, jax.Array, jax.Array]:
        keys = row_keys(root_key, step, batch) if spec.model.dropout > 0 else None

        def add_microbatch(
            carry: tuple[jax.Array, Params], microbatch: tuple[Batch, jax.Array | None]
        ) -> tuple[tuple[jax.Array, Params], None]:
            return jax.tree.map(
                jnp.add, carry, jax.value_and_grad(loss_sum)(params, *microbatch)
            ), None

        pieces = jax.tree.map(
            lambda rows: rows.reshape(num_microbatches, -1, *rows.shape[1:]), (batch, keys)
        )
        zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        (total, summed), _ = jax.lax.scan(add_microbatch, zeros, pieces)
        weights = target_weights(batch.lengths, batch.tokens.shape[1] - 1)
        num_tokens = weights.sum()
        mean = jax.tree.map(lambda gradient: gradient / num_tokens, summed)
        return mean, total / num_tokens, num_tokens

    return gradients


def row_keys(root_key: jax.Array, step: jax.Array, batch: Batch) -> jax.Array:
    """One dropout key for each row of the global batch, from seed, step and row alone."""
    step_key = jax.random.fold_in(root_key, step)
    rows = jnp.arange(batch.lengths.shape[0])
    return jax.vmap(lambda row: jax.random.fold_in(step_key, row))(rows)


def make_eval_step(spec: GPTSpec) -> jax.stages.Wrapped:
    """The jitted ``(params, batch) -> (summed loss, valid targets)``, without dropout."""
    graph = model_graph(spec)

    def eval_step(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        weights = target_weights(batch.lengths, batch.tokens.shape[1] - 1)
        return nnx.merge(graph, params).loss_sum(batch.tokens, weights), weights.sum()

    return jax.jit(eval_step)
