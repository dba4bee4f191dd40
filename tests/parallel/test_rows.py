import itertools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from minigpt.parallel.mesh import make_mesh
from minigpt.parallel.rows import held_rows, rows_by_process
from minigpt.parallel.sharding import BATCH

SHAPES = [shape for shape in itertools.product((1, 2, 4, 8), repeat=3) if np.prod(shape) == 8]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_processes", [1, 2, 4, 8])
def test_rows_by_process_are_those_that_the_devices_of_each_hold(shape, num_processes):
    """Each process owns as many of the devices, in order."""
    mesh = make_mesh(shape)
    parts = NamedSharding(mesh, BATCH).devices_indices_map((16,))
    found = rows_by_process(shape, num_processes, 16)
    owned = np.array(jax.devices()).reshape(num_processes, -1)
    assert len(found) == num_processes
    for rows, devices in zip(found, owned, strict=True):
        assert rows == sorted({r for d in devices for r in range(16)[parts[d][0]]})
    if num_processes == 1:
        assert found[0] == held_rows(mesh, 16).tolist()
