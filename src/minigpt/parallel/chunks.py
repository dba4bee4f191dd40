"""Layers in chunks on their stages, and layers in order: from one to the other.

With ``interleave`` chunks on each stage, stage ``s`` of ``S`` holds chunks ``s``, ``s + S``,
``s + 2 S`` ... of the model. A checkpoint wants layers in order, split evenly. Chunks go from one
place to the other in rounds in which every stage sends one and receives one, so that no stage
ever holds more than its share twice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Transfer(NamedTuple):
    """A chunk on its way: from place ``out_of`` of stage ``source``, to ``into`` of ``target``."""

    source: int
    out_of: int
    target: int
    into: int


def rounds(num_stages: int, interleave: int) -> list[list[Transfer]]:
    """The transfers from chunks to layers in order, one from and to each stage in a round.

    Every stage sends and receives ``interleave`` chunks. Such a graph splits into ``interleave``
    perfect matchings (König 1916), which are found one after the other.
    """
    waiting: dict[int, list[Transfer]] = {stage: [] for stage in range(num_stages)}
    for chunk in range(num_stages * interleave):
        out_of, source = divmod(chunk, num_stages)
        target, into = divmod(chunk, interleave)
        waiting[source].append(Transfer(source, out_of, target, into))
    found: list[list[Transfer]] = []
    for _ in range(interleave):
        chosen: dict[int, Transfer] = {}
        for source in range(num_stages):
            assert _match(source, waiting, chosen, set()), "König: there is a perfect matching"
        for transfer in chosen.values():
            waiting[transfer.source].remove(transfer)
        found.append(sorted(chosen.values()))
    return found


def _match(
    source: int,
    waiting: dict[int, list[Transfer]],
    chosen: dict[int, Transfer],
    tried: set[int],
) -> bool:
    """Find ``source`` a target, moving others' if need be (augmenting paths); by target."""
    for transfer in waiting[source]:
        if transfer.target in tried:
            continue
        tried.add(transfer.target)
        holder = chosen.get(transfer.target)
        if holder is None or _match(holder.source, waiting, chosen, tried):
            chosen[transfer.target] = transfer
            return True
    return False


def in_order(chunks: jax.Array, num_stages: int) -> jax.Array:
    """This stage's part of the layers in order, from its chunks; inside ``shard_map``.

    Args:
        chunks: ``[interleave, layers of a chunk, ...]``.
        num_stages: stages of the ring.

    Returns:
        ``[interleave x layers of a chunk, ...]``.
    """
    interleave = chunks.shape[0]
    moved = _move(chunks, rounds(num_stages, interleave))
    return moved.reshape(-1, *chunks.shape[2:])


def in_chunks(layers: jax.Array, num_stages: int, interleave: int) -> jax.Array:
    """The inverse of ``in_order``."""
    places = layers.reshape(interleave, -1, *layers.shape[1:])
    back = [
        [Transfer(t.target, t.into, t.source, t.out_of) for t in transfers]
        for transfers in rounds(num_stages, interleave)
    ]
    return _move(places, back)


def _move(places: jax.Array, all_rounds: list[list[Transfer]]) -> jax.Array:
    if all(t.source == t.target and t.out_of == t.into for r in all_rounds for t in r):
        return places
    stage = lax.axis_index("pipe")
    moved = jnp.zeros_like(places)
    for transfers in all_rounds:
        by_source = sorted(transfers)
        by_target = sorted(transfers, key=lambda t: t.target)
        out_of = jnp.array([t.out_of for t in by_source])[stage]
        into = jnp.array([t.into for t in by_target])[stage]
        sent = lax.dynamic_index_in_dim(places, out_of, keepdims=False)
        received = lax.ppermute(sent, "pipe", [(t.source, t.target) for t in transfers])
        moved = lax.dynamic_update_index_in_dim(moved, received, into, 0)
    return moved
