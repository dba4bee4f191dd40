"""Collectives over mesh axes, for code inside a ``shard_map`` that is manual over all of them.

Axes of size 1 are left out everywhere, so that a mesh pays for nothing that it does not use: on one
device the program has no collective at all.
"""

from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec


@dataclass(frozen=True)
class Axes:
    """The axes of a mesh that have more than one device."""

    active: tuple[str, ...]

    @classmethod
    def of(cls, mesh: Mesh) -> "Axes":
        """The axes of ``mesh``."""
        return cls(tuple(name for name, size in mesh.shape.items() if size > 1))

    def spec(self, spec: PartitionSpec) -> PartitionSpec:
        """A partition without the axes that divide nothing."""

        def prune(entry: Any) -> Any:  # noqa: ANN401 - as in a PartitionSpec
            names = (entry,) if isinstance(entry, str) else entry or ()
            return self._used(names) or None

        return PartitionSpec(*(prune(entry) for entry in spec))

    def sum(self, x: Any, *axes: str) -> Any:  # noqa: ANN401 - arrays as a tree
        """Sum over the devices along axes."""
        used = self._used(axes)
        return lax.psum(x, used) if used else x

    def max(self, x: jax.Array, *axes: str) -> jax.Array:
        """Elementwise maximum over the devices along axes."""
        used = self._used(axes)
        return lax.pmax(x, used) if used else x

    def gather(self, x: jax.Array, axis: str, *, dim: int) -> jax.Array:
        """The parts of all devices along an axis, joined along a dimension."""
        return lax.all_gather(x, axis, axis=dim, tiled=True) if axis in self.active else x

    def sum_scatter(self, x: jax.Array, axis: str, *, dim: int) -> jax.Array:
        """This device's part, along a dimension, of the sum over the devices along an axis."""
        if axis not in self.active:
            return x
        return lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)

    def own(self, x: jax.Array, axis: str, *, dim: int) -> jax.Array:
        """This device's part, along a dimension, of an array that all along an axis hold."""
        if axis not in self.active:
            return x
        size = x.shape[dim] // lax.axis_size(axis)
        return lax.dynamic_slice_in_dim(x, lax.axis_index(axis) * size, size, dim)

    def index(self, *axes: str) -> jax.Array | int:
        """This device's number along axes, the first one outermost."""
        used = self._used(axes)
        return lax.axis_index(used) if used else 0

    def vary(self, x: jax.Array, *axes: str) -> jax.Array:
        """Mark an array as differing along axes, as far as it is not marked yet."""
        missing = tuple(axis for axis in self._used(axes) if axis not in varying(x))
        return lax.pcast(x, missing, to="varying") if missing else x

    def differ(self, x: jax.Array) -> jax.Array:
        """Mark an array as differing between all devices."""
        return self.vary(x, *self.active)

    def like(self, x: jax.Array, other: jax.Array | jax.ShapeDtypeStruct) -> jax.Array:
        """Mark an array as differing wherever another one does."""
        return self.vary(x, *varying(other))

    def _used(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if axis in self.active)


def varying(x: jax.Array | jax.ShapeDtypeStruct) -> frozenset[str]:
    """The axes along which devices hold different values, as shard_map's types know it."""
    kind = jax.typeof(x)
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying
