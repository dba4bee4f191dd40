"""Measures the all-reduce along each axis of a mesh, as training does it."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from minigpt.bench import best_seconds
from minigpt.parallel.axes import Axes

_LARGE_BYTES = {"cpu": 4 * 2**20}
_OTHER_LARGE_BYTES = 64 * 2**20
_SMALL_BYTES = 4
_REPEATS = 8
"""All-reduces in one program, so that what starting a program costs is hardly counted."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """The all-reduce along one axis of the mesh, with all groups along it at once."""

    axis: str
    size: int
    """Devices along the axis."""
    across_processes: bool
    """Whether peers are in different processes."""
    message_bytes: int
    """Size of the large message on each device."""
    bandwidth_bytes_per_second: float
    """Algorithm bandwidth: message_bytes x 2 (size - 1) / size / seconds of the large message."""
    latency_seconds: float
    """Time for a single number."""


def measure_links(mesh: Mesh) -> tuple[Link, ...]:
    """One for each axis that has more than one device; all processes of the mesh call this."""
    large = _LARGE_BYTES.get(mesh.devices.flat[0].platform, _OTHER_LARGE_BYTES)
    return tuple(_measure(mesh, axis, large) for axis in Axes.of(mesh).active)


def _measure(mesh: Mesh, axis: str, large: int) -> Link:
    size = mesh.shape[axis]
    return Link(
        axis=axis,
        size=size,
        across_processes=_across_processes(mesh, axis),
        message_bytes=large,
        bandwidth_bytes_per_second=large * 2 * (size - 1) / size / _seconds(mesh, axis, large),
        latency_seconds=_seconds(mesh, axis, _SMALL_BYTES),
    )


def _seconds(mesh: Mesh, axis: str, num_bytes: int) -> float:
    """Shortest time of an all-reduce of so many bytes of float32 on each device."""
    everywhere = PartitionSpec(mesh.axis_names)
    shape, sharding = (mesh.size, num_bytes // 4), NamedSharding(mesh, everywhere)
    message = jax.jit(partial(jnp.zeros, shape, jnp.float32), out_shardings=sharding)()

    def reduce(_: jax.Array | int, x: jax.Array) -> jax.Array:
        return lax.pcast(lax.psum(x, axis), axis, to="varying")

    def program(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, _REPEATS, reduce, x)

    many = jax.shard_map(program, mesh=mesh, in_specs=everywhere, out_specs=everywhere)
    return best_seconds(jax.jit(many), message, repeats=5) / _REPEATS


def _across_processes(mesh: Mesh, axis: str) -> bool:
    groups = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), -1)
    return any(
        len({device.process_index for device in group}) > 1
        for group in groups.reshape(-1, mesh.shape[axis])
    )
