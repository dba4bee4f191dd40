from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from minigpt.model.dropout import dropout
from minigpt.parallel.axes import Axes
from minigpt.parallel.mesh import make_mesh
from minigpt.parallel.sequence import entering_product, leaving_product
from minigpt.train.gradients import peers_on, with_sequence_divided

PEERS = 4
MESH = make_mesh((1, 1, PEERS))
AXES = Axes.of(MESH)
ENTER, LEAVE = "btd,fd->btf", "btf,df->btd"
POSITIONS = P(None, "model", None)


def on_peers(in_specs, out_specs):
    return partial(jax.shard_map, mesh=MESH, in_specs=in_specs, out_specs=out_specs)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("keep_gathered", [False, True])
def test_products_are_those_of_one_device_with_their_gradients(keep_gathered):
    enter, leave = entering_product(AXES, keep_gathered=keep_gathered), leaving_product(AXES)
    x, up, down = normal(0, 2, 8, 6), normal(1, 12, 6), normal(2, 6, 12)

    @on_peers((POSITIONS, P("model", None), P(None, "model")), POSITIONS)
    def divided(x, up, down):
        return leave(LEAVE, jnp.sin(enter(ENTER, x, up)), down)

    def whole(x, up, down):
        return jnp.einsum(LEAVE, jnp.sin(jnp.einsum(ENTER, x, up)), down)

    found, pull = jax.vjp(divided, x, up, down)
    expected, expected_pull = jax.vjp(whole, x, up, down)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    d_out = normal(3, 2, 8, 6)
    for gradient, wanted in zip(pull(d_out), expected_pull(d_out), strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-5)


def test_positions_held_have_the_dropout_mask_of_one_device():
    peers = with_sequence_divided(peers_on(AXES), AXES, PEERS, remat=False)
    keys = jax.random.split(jax.random.key(0), 3)
    x = jnp.ones((3, 8, 6))

    @on_peers((POSITIONS,), POSITIONS)
    def divided(x):
        return dropout(x, 0.5, keys, peers)

    np.testing.assert_array_equal(jax.jit(divided)(x), dropout(x, 0.5, keys))
