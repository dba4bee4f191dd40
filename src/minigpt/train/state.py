"""What training carries from step to step, and how it lies on the mesh.

On the devices the layers of ``blocks`` are ``[chunks, layers of all stages, ...]``, split over
``pipe`` along the second dimension, so that each stage holds its chunks. Outside (in checkpoints,
for sampling) they are ``[layers, ...]``, whatever the mesh.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from minigpt.config import Config, ParallelConfig
from minigpt.errors import ConfigError
from minigpt.model.gpt import GPT, GPTSpec
from minigpt.parallel.chunks import in_chunks, in_order
from minigpt.parallel.mesh import make_mesh, mesh_shape
from minigpt.parallel.sharding import state_shardings

Params = dict[str, Any]
"""Nested dictionaries of float32 arrays, named as the modules of ``model.gpt``."""


class TrainState(NamedTuple):
    """Steps done (int32 scalar), parameters and optimizer state."""

    step: jax.Array
    params: Params
    opt_state: optax.OptState


def model_spec(config: Config, vocab_size: int) -> GPTSpec:
    """The model that a configuration and a tokenizer's vocabulary make.

    Raises:
        ConfigError: the vocabulary cannot be split over the stages and tensor-parallel peers.
    """
    spec = GPTSpec(
        model=config.model,
        vocab_size=vocab_size,
        compute_dtype=jnp.dtype(config.train.compute_dtype),
        remat=config.parallel.remat == "layer",
    )
    owners = config.parallel.pipe * config.parallel.model
    if spec.padded_vocab_size % owners:
        raise ConfigError(
            f"parallel.pipe x parallel.model must divide the padded vocabulary of "
            f"{spec.padded_vocab_size}, got {config.parallel.pipe} x {config.parallel.model}: "
            "use powers of two up to 128 in all"
        )
    return spec


def model_graph(spec: GPTSpec) -> nnx.GraphDef[GPT]:
    """The model without arrays: ``nnx.merge(graph, params)`` is the model."""
    return nnx.graphdef(nnx.eval_shape(lambda: GPT(spec, nnx.Rngs(0))))


def init_params(spec: GPTSpec, seed: int) -> Params:
    """Parameters drawn from ``seed``, with layers ``[layers, ...]``."""
    return nnx.to_pure_dict(nnx.state(GPT(spec, nnx.Rngs(seed))))


def init_state(
    spec: GPTSpec,
    optimizer: optax.GradientTransformation,
    seed: int,
    layout: "StateLayout",
) -> TrainState:
    """The state before the first step, with every mesh starting from the same bits.

    Each device draws a whole parameter and keeps its part, one parameter after the other. (Drawn
    in parts, the last bit of a normal number depends on how its loop was vectorised.)
    """
    shapes = state_shapes(spec, optimizer, layout)
    everywhere = NamedSharding(layout.mesh, PartitionSpec())

    def draw(path: tuple[Any, ...], sharding: NamedSharding) -> jax.Array:
        def parameter() -> jax.Array:
            leaf: Any = layout.to_chunks(init_params(spec, seed))
            for key in path:
                leaf = leaf[key.key]
            return leaf

        whole = jax.jit(parameter, out_shardings=everywhere)()
        return jax.jit(lambda leaf: leaf, out_shardings=sharding)(whole)

    shardings = layout.shardings(shapes)
    params = jax.tree_util.tree_map_with_path(draw, shardings.params)
    opt_state = jax.jit(optimizer.init, out_shardings=shardings.opt_state)(params)
    step = jax.jit(lambda: jnp.zeros((), jnp.int32), out_shardings=shardings.step)()
    return TrainState(step, params, opt_state)


def state_shapes(
    spec: GPTSpec, optimizer: optax.GradientTransformation, layout: "StateLayout"
) -> TrainState:
    """Shapes and dtypes of the state."""

    def create() -> TrainState:
        params = layout.to_chunks(init_params(spec, 0))
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    return jax.eval_shape(create)


class StateLayout:
    """Where the parts of a state lie, and the two shapes of its layers."""

    def __init__(self, mesh: Mesh, *, interleave: int, zero: bool) -> None:
        """Of a mesh, with ``interleave`` chunks of layers on each stage."""
        self.mesh, self._interleave, self._zero = mesh, interleave, zero

    @classmethod
    def of(cls, parallel: ParallelConfig) -> "StateLayout":
        """On the mesh that a configuration asks for, over the first of jax's devices.

        Raises:
            ConfigError: the mesh does not fit the devices.
        """
        mesh = make_mesh(mesh_shape(parallel, jax.device_count()))
        return cls(mesh, interleave=parallel.interleave, zero=parallel.zero == 1)

    def shardings(self, state: Any) -> Any:  # noqa: ANN401 - a TrainState or part of one
        """Shardings of a state (or its shapes) with layers in chunks."""
        return state_shardings(state, self.mesh, zero=self._zero, in_chunks=True)

    def saved_target(self, state: Any) -> Any:  # noqa: ANN401 - a TrainState or part of one
        """Shapes, dtypes and shardings of ``state`` with layers ``[layers, ...]``."""
        shapes = jax.eval_shape(self.to_layers, state)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            self._saved_shardings(shapes),
        )

    def save(self, state: Any) -> Any:  # noqa: ANN401 - a TrainState or part of one
        """A copy with layers ``[layers, ...]``, for whatever does not know this mesh."""
        shardings = self.shardings(state)
        return self._convert(
            partial(in_order, num_stages=self.mesh.shape["pipe"]),
            shardings,
            self._saved_shardings(jax.eval_shape(self.to_layers, state)),
        )(state)

    def load(self, state: Any) -> Any:  # noqa: ANN401 - a TrainState or part of one
        """The inverse of ``save``."""
        num_stages = self.mesh.shape["pipe"]
        return self._convert(
            partial(in_chunks, num_stages=num_stages, interleave=self._interleave),
            self._saved_shardings(state),
            self.shardings(jax.eval_shape(self.to_chunks, state)),
        )(state)

    def _saved_shardings(self, state: Any) -> Any:  # noqa: ANN401
        return state_shardings(state, self.mesh, zero=self._zero, in_chunks=False)

    def _convert(self, move: Callable[[jax.Array], jax.Array], before: Any, after: Any) -> Any:  # noqa: ANN401
        """Layers moved by ``move`` on each device; what is not in layers is copied."""
        in_specs, out_specs = (
            jax.tree.map(lambda sharding: sharding.spec, tree) for tree in (before, after)
        )
        local = jax.shard_map(
            partial(_map_layers, move),
            mesh=self.mesh,
            in_specs=(in_specs,),
            out_specs=out_specs,
            check_vma=False,  # a moment's step counter and the like are the same everywhere
        )
        return jax.jit(local, out_shardings=after)

    def to_chunks(self, state: Any) -> Any:  # noqa: ANN401 - a TrainState or part of one
        """``[layers, ...]`` as ``[chunks, layers of all stages, ...]``."""

        def reshape(leaf: jax.Array) -> jax.Array:
            return leaf.reshape(self._interleave, -1, *leaf.shape[1:])

        return _map_layers(reshape, state)

    def to_layers(self, state: Any) -> Any:  # noqa: ANN401 - a TrainState or part of one
        """``[chunks, layers of all stages, ...]`` as ``[layers, ...]``."""
        return _map_layers(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), state)


def _map_layers(function: Any, tree: Any) -> Any:  # noqa: ANN401 - any tree with "blocks" in it
    def apply(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        in_blocks = any(getattr(key, "key", None) == "blocks" for key in path)
        return function(leaf) if in_blocks else leaf

    return jax.tree_util.tree_map_with_path(apply, tree)
