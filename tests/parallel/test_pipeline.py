"""Schedules over a toy model: which layers are computed when, and the gradients."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from minigpt.parallel.axes import Axes
from minigpt.parallel.mesh import make_mesh
from minigpt.parallel.pipeline import Stages, pipelined_gradients, pipelined_loss
from minigpt.parallel.schedule import Schedule

WIDTH, LAYERS, STAGES = 4, 16, 4


@pytest.fixture(
    params=[("1f1b", 1, 3), ("1f1b", 1, 9), ("1f1b", 2, 6), ("1f1b", 4, 1), ("gpipe", 2, 5)],
    ids=lambda case: "-".join(map(str, case)),
)
def schedule(request):
    kind, interleave, microbatches = request.param
    return Schedule(kind, STAGES, interleave, microbatches)


class Toy:
    """``x = inputs[m] * scale``, layers ``tanh(x * w)``, loss ``sum(x^2 * scale)``."""

    def __init__(self, schedule, *, remat=False):
        """With random weights; ``computed`` counts (number of the layer, microbatch)."""
        keys = jax.random.split(jax.random.key(0), 3)
        self.schedule, self.remat = schedule, remat
        self.weights = jax.random.normal(keys[0], (LAYERS, WIDTH))
        self.scale = jax.random.normal(keys[1], (WIDTH,))
        self.inputs = jax.random.normal(keys[2], (schedule.num_microbatches, WIDTH))
        self.computed = Counter()

    def count(self, number, m):
        self.computed[int(number), int(m)] += 1

    def embed(self, scale, m):
        return self.inputs[m] * scale

    def layer(self, w, x, number, m):
        def run(w, x):
            jax.debug.callback(self.count, number, m)
            return jnp.tanh(x * w)

        return (jax.checkpoint(run) if self.remat else run)(w, x)

    def head(self, scale, y, m):
        return (y**2 * scale).sum()

    def on_stages(self, run, out_specs):
        """``run(stages, chunks of layers, scale, zero, one)`` on four devices."""
        mesh = make_mesh((STAGES, 1, 1))
        chunks = self.schedule.interleave
        layers = self.weights.reshape(chunks, STAGES, -1, WIDTH).swapaxes(0, 1)
        axes = Axes.of(mesh)
        stages = Stages(self.embed, self.layer, self.head, axes)

        def local(layers, scale, one):
            return run(stages, layers[0], scale, jnp.zeros(WIDTH), one)

        specs = {"in_specs": (P("pipe"), P(), P()), "out_specs": out_specs}
        found = jax.jit(jax.shard_map(local, mesh=mesh, **specs))(layers, self.scale, 1)
        jax.effects_barrier()
        return found

    def all_once(self):
        return {(n, m): 1 for n in range(LAYERS) for m in range(self.schedule.num_microbatches)}

    def loss(self, weights, scale):
        total = 0.0
        for m in range(self.schedule.num_microbatches):
            x = self.embed(scale, m)
            for w in weights:
                x = jnp.tanh(x * w)
            total += self.head(scale, x, m)
        return total


@pytest.mark.parametrize("remat", [False, True])
def test_layers_run_once_and_only_remat_computes_them_again(schedule, remat):
    toy = Toy(schedule, remat=remat)

    def run(stages, layers, scale, zero, one):
        loss, (d_layers, d_scale) = pipelined_gradients(stages, schedule, layers, scale, zero, one)
        return loss, (d_layers[None], d_scale)

    loss, (d_layers, d_scale) = toy.on_stages(run, (P(), (P("pipe"), P())))
    expected, (d_weights, d_expected) = jax.value_and_grad(toy.loss, (0, 1))(toy.weights, toy.scale)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(d_scale, d_expected, rtol=1e-4, atol=1e-6)
    d_layers = d_layers.swapaxes(0, 1).reshape(LAYERS, WIDTH)
    np.testing.assert_allclose(d_layers, d_weights, rtol=1e-4, atol=1e-6)
    assert toy.computed == {place: times * (1 + remat) for place, times in toy.all_once().items()}


def test_evaluation_runs_every_layer_once(schedule):
    toy = Toy(schedule)

    def run(stages, layers, scale, zero, _):
        return pipelined_loss(stages, schedule, layers, scale, zero)

    loss = toy.on_stages(run, P())
    np.testing.assert_allclose(loss, toy.loss(toy.weights, toy.scale), rtol=1e-5)
    assert toy.computed == toy.all_once()
