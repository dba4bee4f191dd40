"""Chunks move to layers in order and back, a chunk from and to each stage in a round."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from minigpt.parallel.chunks import in_chunks, in_order, rounds

SHAPES = [(stages, chunks) for stages in (1, 2, 3, 4, 8) for chunks in (1, 2, 3, 4, 6)]


@pytest.mark.parametrize(("stages", "chunks"), SHAPES)
def test_rounds_are_permutations_that_move_every_chunk(stages, chunks):
    found = rounds(stages, chunks)
    assert len(found) == chunks
    for transfers in found:
        assert sorted(t.source for t in transfers) == list(range(stages))
        assert sorted(t.target for t in transfers) == list(range(stages))
    moves = {(t.out_of * stages + t.source, t.target * chunks + t.into) for r in found for t in r}
    assert moves == {(chunk, chunk) for chunk in range(stages * chunks)}


@pytest.mark.parametrize(("stages", "chunks"), [(1, 1), (2, 2), (4, 2), (2, 4), (4, 3)])
def test_there_and_back(stages, chunks):
    mesh = Mesh(np.array(jax.devices()[:stages]), ("pipe",))
    layers = np.arange(stages * chunks * 2 * 3).reshape(stages * chunks * 2, 3)
    held = layers.reshape(chunks, -1, 3)  # [chunks, layers of all stages, ...]

    def run(function, spec, out_spec, array):
        mapped = jax.shard_map(
            function, mesh=mesh, in_specs=spec, out_specs=out_spec, check_vma=False
        )
        return jax.jit(mapped).lower(array).compile()

    forth = run(lambda x: in_order(x, stages), P(None, "pipe"), P("pipe"), held)
    back = run(lambda x: in_chunks(x, stages, chunks), P("pipe"), P(None, "pipe"), layers)
    np.testing.assert_array_equal(forth(held), layers)
    np.testing.assert_array_equal(back(layers), held)
    for program in (forth, back):
        assert "all-gather" not in program.as_text()
