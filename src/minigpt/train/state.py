"""What training carries from step to step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from minigpt.config import Config
from minigpt.model.gpt import GPT, GPTSpec

Params = dict[str, Any]
"""Nested dictionaries of float32 arrays, named as the modules of ``model.gpt``."""


class TrainState(NamedTuple):
    """Steps done (int32 scalar), parameters and optimizer state."""

    step: jax.Array
    params: Params
    opt_state: optax.OptState


def model_spec(config: Config, vocab_size: int) -> GPTSpec:
    """The model that a configuration and a tokenizer's vocabulary make."""
    return GPTSpec(
        model=config.model,
        vocab_size=vocab_size,
        compute_dtype=jnp.dtype(config.train.compute_dtype),
        remat=config.parallel.remat == "layer",
    )


def model_graph(spec: GPTSpec) -> nnx.GraphDef[GPT]:
    """The model without arrays: ``nnx.merge(graph, params)`` is the model."""
    return nnx.graphdef(nnx.eval_shape(lambda: GPT(spec, nnx.Rngs(0))))


def init_params(spec: GPTSpec, seed: int) -> Params:
    """Parameters drawn from ``seed``."""
    return nnx.to_pure_dict(nnx.state(GPT(spec, nnx.Rngs(seed))))


def init_state(spec: GPTSpec, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """The state before the first step, compiled as one program."""

    @jax.jit
    def create() -> TrainState:
        params = init_params(spec, seed)
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    return create()
