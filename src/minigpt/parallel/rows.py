"""Rows of a global batch: which of them a process holds, and whether peers hold the same."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from minigpt.parallel.sharding import BATCH


def held_rows(mesh: Mesh, num_rows: int) -> NDArray[np.int64]:
    """Rows of a global batch of ``num_rows`` that this process's devices hold, ascending."""
    parts = NamedSharding(mesh, BATCH).addressable_devices_indices_map((num_rows,))
    rows = [np.arange(num_rows)[part] for part in parts.values() if part is not None]
    return np.unique(np.concatenate(rows))


def rows_by_process(
    shape: tuple[int, int, int], num_processes: int, num_rows: int
) -> list[list[int]]:
    """What ``held_rows`` gives in each process of a mesh, told without its devices.

    Args:
        shape: (pipe, data, model) of the mesh, over all devices in process order.
        num_processes: processes, each with as many devices.
        num_rows: rows of the global batch.
    """
    groups = np.broadcast_to(np.arange(shape[1])[None, :, None], shape).reshape(num_processes, -1)
    rows = np.arange(num_rows).reshape(shape[1], -1)
    return [rows[np.unique(held)].ravel().tolist() for held in groups]


def global_batch(mesh: Mesh, held: Any, num_rows: int) -> Any:  # noqa: ANN401 - arrays as a tree
    """Arrays of ``num_rows`` rows over the mesh, of which each process gives what it holds.

    Args:
        mesh: the mesh.
        held: this process's rows, ``[len(held_rows(mesh, num_rows)), ...]`` each, in that order.
        num_rows: rows of the global batch.
    """
    sharding = NamedSharding(mesh, BATCH)

    def place(local: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(sharding, local, (num_rows, *local.shape[1:]))

    return jax.tree.map(place, held)


def groups_that_differ(mesh: Mesh, batch: Any) -> list[int]:  # noqa: ANN401 - arrays as a tree
    """Data-parallel groups whose devices hold different rows, though they must hold the same.

    jax cannot see this: an array whose replicas differ is an array, and training on it gives a
    mixture of both. Rows are compared by a 32-bit hash of what is on each device.

    Args:
        mesh: the mesh.
        batch: integer arrays, as ``global_batch`` makes them.
    """

    def compare(batch: Any) -> jax.Array:  # noqa: ANN401
        digest = jnp.uint32(0)
        for leaf in jax.tree.leaves(batch):
            values = leaf.reshape(-1).astype(jnp.uint32)
            places = jnp.arange(values.size, dtype=jnp.uint32)
            digest = _mix(digest + _mix(values + _mix(places)).sum(dtype=jnp.uint32))
        peers = ("pipe", "model")
        differs = lax.pmax(digest, peers) != lax.pmin(digest, peers)
        return lax.all_gather(differs, "data")

    everywhere = jax.jit(
        jax.shard_map(compare, mesh=mesh, in_specs=BATCH, out_specs=P(), check_vma=False)
    )
    return np.flatnonzero(np.asarray(everywhere(batch))).tolist()


def _mix(x: jax.Array) -> jax.Array:
    """MurmurHash3's 32-bit finaliser (Appleby 2011): every bit depends on all."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
