"""What was measured becomes the cluster that the planner counts with."""

import dataclasses

import pytest
from doctor.made_up import device, node

from minigpt.config import Config, ParallelConfig
from minigpt.doctor.facts import Findings
from minigpt.doctor.hardware import hardware
from minigpt.doctor.links import Link as Measured
from minigpt.plan import clusters, cost
from minigpt.plan.hlo import Collective


def link(axis, size, *, across, bandwidth, latency):
    return Measured(
        axis=axis,
        size=size,
        across_processes=across,
        message_bytes=2**22,
        bandwidth_bytes_per_second=bandwidth,
        latency_seconds=latency,
    )


def findings(*devices, links=()):
    nodes = tuple(node(rank) for rank in range(len(devices)))
    return Findings(driver=node(9), workers=nodes, devices=devices, links=links)


def measured(platform, count, **changes):
    rates = {"matrix_flops": 3e12, "memory_bandwidth": 4e11, "memory_bytes": 2**34}
    return device(platform, count, **(rates | changes))


def test_two_nodes_of_gpus():
    """Two groups along data cross the network at once: the node carries both their rings."""
    config = Config(parallel=ParallelConfig(data=2, model=2))
    links = (
        link("data", 2, across=True, bandwidth=1e9, latency=1e-4),
        link("model", 2, across=False, bandwidth=8e9, latency=2e-5),
    )
    found = hardware(
        config, findings(measured("gpu", 2), measured("gpu", 2, matrix_flops=2e12), links=links)
    )
    assert found == clusters.Cluster(
        name="NVIDIA H200",
        nodes=2,
        devices_per_node=2,
        platform="cuda",
        device_memory=2**34,
        matrix_flops=clusters.Rates(float32=2e12),
        memory_bandwidth=4e11,
        inside_node=clusters.Link(bandwidth=8e9, latency=1e-5),
        between_nodes=clusters.Link(bandwidth=2e9, latency=5e-5),
    )
    # The planner gives back what was measured.
    for axis, seconds in (("data", 1e9 / 1e9 + 1e-4), ("model", 1e9 / 8e9 + 2e-5)):
        collective = Collective("all-reduce", (axis,), 10**9)
        assert cost.collective_seconds(collective, (1, 2, 2), found) == pytest.approx(seconds)


def test_virtual_devices_share_their_machine():
    links = (link("data", 4, across=False, bandwidth=1e9, latency=1e-4),)
    found = hardware(Config(), findings(measured("cpu", 4, memory_bytes=None), links=links))
    assert found.devices_per_node == 4
    assert found.matrix_flops.float32 == 3e12  # measured while all of them worked
    assert found.memory_bandwidth == 4e11
    assert found.device_memory == node(0).memory_bytes / 4


@pytest.mark.parametrize("lacking", ["matrix_flops", "memory_bandwidth"])
def test_nothing_measured_is_no_cluster(lacking):
    assert hardware(Config(), findings(measured("cpu", 1))) is not None
    assert hardware(Config(), findings(measured("cpu", 1, **{lacking: None}))) is None
    failed = dataclasses.replace(findings(measured("cpu", 2)), mesh_failure="does not divide")
    assert hardware(Config(), failed) is None


def test_a_mesh_of_one_of_several_devices():
    found = hardware(Config(parallel=ParallelConfig(data=1)), findings(measured("cpu", 8)))
    assert (found.nodes, found.devices_per_node) == (1, 1)
    assert found.device_memory == 2**34 / 8
