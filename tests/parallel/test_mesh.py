import jax
import pytest

from minigpt.config import ParallelConfig
from minigpt.errors import ConfigError
from minigpt.parallel.mesh import make_mesh, mesh_shape, picture


@pytest.mark.parametrize(
    ("parallel", "devices", "shape"),
    [
        ({}, 8, (1, 8, 1)),
        ({"pipe": 2, "model": 2}, 8, (2, 2, 2)),
        ({"pipe": 2, "data": 1}, 8, (2, 1, 1)),
        ({"data": 8}, 8, (1, 8, 1)),
    ],
)
def test_data_takes_what_is_left(parallel, devices, shape):
    assert mesh_shape(ParallelConfig(**parallel), devices) == shape


@pytest.mark.parametrize(
    ("parallel", "devices", "message"),
    [
        ({"pipe": 3}, 8, "3 x 1 with 8 device.s.; use parallel.data 2 for 6 of them"),
        ({"pipe": 4, "model": 4}, 8, "4 x 4 with 8 device.s.; 16 devices are the least"),
        ({"data": 16}, 8, "1 x 16 x 1 = 16 with 8 device.s.; use parallel.data 8"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(parallel, devices, message):
    with pytest.raises(ConfigError, match=message):
        mesh_shape(ParallelConfig(**parallel), devices)


def test_the_picture_says_who_holds_what():
    mesh = make_mesh((2, 2, 2))
    lines = picture(mesh, num_layers=8, interleave=2, batch_size=16).splitlines()
    assert lines == [
        "mesh: 2 pipe x 2 data x 2 model",
        "  stage 0: layers 0-1, 4-5",
        "    rows 0-7: [0] slice 1/2  [1] slice 2/2",
        "    rows 8-15: [2] slice 1/2  [3] slice 2/2",
        "  stage 1: layers 2-3, 6-7",
        "    rows 0-7: [4] slice 1/2  [5] slice 2/2",
        "    rows 8-15: [6] slice 1/2  [7] slice 2/2",
    ]
    assert [device.id for device in mesh.devices.flat] == [d.id for d in jax.devices()]
