"""Times by formula, checked by hand on cases where they are simple."""

import dataclasses
import itertools

import pytest

from minigpt.config import Config, ModelConfig, ParallelConfig, TrainConfig
from minigpt.plan.clusters import Cluster, Link, Rates
from minigpt.plan.cost import collective_seconds, rings_across_nodes, step_time
from minigpt.plan.hlo import AXES, Collective

CLUSTER = Cluster(
    name="made up",
    nodes=2,
    devices_per_node=4,
    device_memory=2.0**40,
    peak_flops=Rates(float32=1e12),
    matrix_flops=Rates(float32=1e12),
    memory_bandwidth=1e30,
    inside_node=Link(bandwidth=1e9, latency=0),
    between_nodes=Link(bandwidth=1e8, latency=0),
    operation_seconds=0,
)
ONE = dataclasses.replace(CLUSTER, nodes=1, devices_per_node=1)
MODEL = ModelConfig(num_layers=8, num_heads=8, embed_dim=256, seq_length=256)


def config_of(pipe=1, data=1, model=1, **parallel):
    mesh = ParallelConfig(pipe=pipe, data=data, model=model, **parallel)
    return Config(model=MODEL, parallel=mesh, train=TrainConfig(global_batch_size=32))


def time_of(cluster, **mesh):
    config = config_of(**mesh)
    parallel = config.parallel
    return step_time(config, (parallel.pipe, parallel.data, parallel.model), 50304, cluster)


def rings_by_hand(axes, shape, devices_per_node):
    """Walks every ring device by device."""
    coordinates = list(itertools.product(*(range(size) for size in shape)))
    number = {place: i for i, place in enumerate(coordinates)}
    inside = [AXES.index(axis) for axis in axes]
    leaving = {}
    for fixed in {tuple(p for i, p in enumerate(c) if i not in inside) for c in coordinates}:
        ring = [
            number[c]
            for c in coordinates
            if tuple(p for i, p in enumerate(c) if i not in inside) == fixed
        ]
        for here, there in zip(ring, ring[1:] + ring[:1], strict=True):
            if here // devices_per_node != there // devices_per_node:
                node = here // devices_per_node
                leaving[node] = leaving.get(node, 0) + 1
    return max(leaving.values(), default=0)


@pytest.mark.parametrize(
    "shape", [(2, 2, 2), (1, 8, 1), (8, 1, 1), (2, 4, 1), (1, 2, 4), (4, 1, 2)]
)
@pytest.mark.parametrize("devices_per_node", [1, 2, 4, 8])
def test_rings_across_nodes(shape, devices_per_node):
    used = [axis for axis, size in zip(AXES, shape, strict=True) if size > 1]
    for number in range(1, len(used) + 1):
        for axes in itertools.combinations(used, number):
            found = rings_across_nodes(Collective("all-reduce", axes, 1), shape, devices_per_node)
            assert found == rings_by_hand(axes, shape, devices_per_node), axes


def test_collectives():
    def seconds(kind, axis, shape=(1, 2, 4)):
        return collective_seconds(Collective(kind, (axis,), 10**6), shape, CLUSTER)

    # Four devices in a node send 2 x 3/4 of the message.
    assert seconds("all-reduce", "model") == pytest.approx(1.5e6 / 1e9)
    assert seconds("all-gather", "model") == pytest.approx(0.75e6 / 1e9)
    assert seconds("reduce-scatter", "model") == pytest.approx(3e6 / 1e9)
    # Two data groups, four rings, one network.
    assert seconds("all-reduce", "data") == pytest.approx(4 * 1e6 / 1e8)
    assert seconds("collective-permute", "pipe", (2, 1, 4)) == pytest.approx(4 * 1e6 / 1e8)
    assert seconds("collective-permute", "pipe", (4, 1, 1)) == pytest.approx(1e6 / 1e9)


def test_one_device_multiplies_matrices():
    """With memory for nothing, what is left is the products: the loss's, and layers three times."""
    tokens = 32 * 256
    keys = (128 * 128 + 128 * 256) / 256
    layer = 2 * 12 * 256**2 + 4 * keys * 256
    flops = tokens * (3 * 8 * layer + 4 * 2 * 50304 * 256)
    found = time_of(ONE)
    assert found.total == pytest.approx(flops / 1e12, rel=1e-6)
    again = time_of(ONE, remat="layer")
    assert again.total - found.total == pytest.approx(tokens * 8 * layer / 1e12, rel=1e-6)


def test_a_mesh_shares_the_work():
    one, data = time_of(ONE), time_of(CLUSTER, data=8)
    assert data.compute == pytest.approx(one.compute / 8)
    assert (data.tensor, data.pipe, data.bubble) == (0, 0, 0)
    assert data.data > 0
    tensor = time_of(CLUSTER, model=8)
    assert tensor.compute == pytest.approx(one.compute / 8)
    assert tensor.tensor > 0
    assert tensor.data == 0


def test_gradients_of_microbatches_are_added_up():
    """Each is read, and its sum read and written; the vocabulary's also for the lookup."""
    slow = dataclasses.replace(ONE, memory_bandwidth=1e9)
    one, four = time_of(slow), time_of(slow, microbatches=4)
    layers = 8 * (12 * 256**2 + 13 * 256)
    rest = 50304 * 256 + 256 * 256 + 2 * 256
    sums = 4 * 12 * (layers + 2 * rest) / 1e9
    assert four.total - one.total == pytest.approx(sums, rel=1e-6)


def test_bubbles():
    """4 stages, 8 microbatches: a stage waits in 3 of 11 ticks of either direction."""
    cluster = dataclasses.replace(CLUSTER, nodes=1)
    found = time_of(cluster, pipe=4, microbatches=8)
    keys = (128 * 128 + 128 * 256) / 256
    unit = 32 // 8 * 256 * 2 * (2 * 12 * 256**2 + 4 * keys * 256) / 1e12
    assert found.bubble == pytest.approx(3 * 3 * unit, rel=1e-6)
    half = time_of(cluster, pipe=4, microbatches=8, interleave=2)
    assert half.bubble == pytest.approx(found.bubble / 2, rel=1e-6)
    assert half.pipe > found.pipe


def test_what_is_shared_costs_memory_traffic():
    slow = dataclasses.replace(CLUSTER, memory_bandwidth=1e9)
    assert time_of(slow, data=8, zero=1).optimizer < time_of(slow, data=8).optimizer
    plain, divided = time_of(slow, model=8), time_of(slow, model=8, sequence=True)
    assert divided.compute < plain.compute
