"""Who holds which part of each array."""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from minigpt.parallel.mesh import VOCAB_AXES

BATCH = P("data")

Shaped = jax.Array | jax.ShapeDtypeStruct

# The dimension of a layer's parameter that is split over "model": Megatron's columns (heads and
# hidden units a product makes) and rows (those it sums over). What is not here is not split.
_SPLIT_DIM = {
    "qkv_kernel": 1,
    "qkv_bias": 1,
    "out_kernel": 1,
    "up_kernel": 0,
    "up_bias": 0,
    "down_kernel": 1,
}
_VOCABULARY = ("token_embedding", "output_embedding")


def param_specs(params: Any) -> Any:  # noqa: ANN401 - a tree of parameters
    """The partition of each parameter; layers are ``[chunks, layers of all stages, ...]``."""
    return jax.tree_util.tree_map_with_path(_spec, params)


def gradient_specs(params: Any, mesh: Mesh, *, zero: bool) -> Any:  # noqa: ANN401 - as above
    """The partition of each summed gradient: that of its moments."""

    def spec(path: tuple[Any, ...], leaf: Shaped) -> P:
        own = _spec(path, leaf)
        first = 2 if "pipe" in own else 0
        return _also_over_data(own, leaf.shape, mesh, first=first) if zero else own

    return jax.tree_util.tree_map_with_path(spec, params)


def _spec(path: tuple[Any, ...], leaf: Shaped, *, in_chunks: bool = True) -> P:
    names = [str(getattr(key, "key", key)) for key in path]
    if names[-1] in _VOCABULARY:
        return P(VOCAB_AXES, None)
    if "blocks" not in names:
        return P()
    leading = (None, "pipe") if in_chunks else ("pipe",)
    own: list[str | None] = [None] * (leaf.ndim - len(leading))
    if names[-1] in _SPLIT_DIM:
        own[_SPLIT_DIM[names[-1]]] = "model"
    return P(*leading, *own)


def state_shardings(state: Any, mesh: Mesh, *, zero: bool, in_chunks: bool) -> Any:  # noqa: ANN401 - a TrainState
    """Shardings of a training state: moments lie where their parameters do.

    Args:
        state: the state, or its shapes; optimizer moments are named as the parameters.
        mesh: the mesh.
        zero: split the optimizer's moments over ``data`` too (Rajbhandari et al. 2020, ZeRO
            stage 1), along the first dimension within a layer that divides.
        in_chunks: layers are ``[chunks, layers of all stages, ...]``, else ``[layers, ...]``.
    """

    def sharding(path: tuple[Any, ...], leaf: Shaped) -> NamedSharding:
        spec = _spec(path, leaf, in_chunks=in_chunks) if leaf.ndim else P()
        is_moment = any(getattr(key, "name", None) in ("mu", "nu") for key in path)
        if zero and is_moment:
            in_layers = "pipe" in spec
            spec = _also_over_data(spec, leaf.shape, mesh, first=(1 + in_chunks) * in_layers)
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(sharding, state)


def _also_over_data(spec: P, shape: tuple[int, ...], mesh: Mesh, *, first: int) -> P:
    axes = [*spec, *[None] * (len(shape) - len(spec))]
    for dim in range(first, len(shape)):
        if axes[dim] is None and shape[dim] % mesh.shape["data"] == 0:
            axes[dim] = "data"
            return P(*axes)
    return spec
