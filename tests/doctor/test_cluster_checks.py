"""The checks between nodes, on facts that are right, doubtful and wrong."""

import pytest
from doctor.made_up import cluster_of, device, node, said
from tiny import with_fields

from minigpt.config import Config
from minigpt.doctor import cluster_checks as checks
from minigpt.doctor.facts import Findings, Resources, StorageFacts
from minigpt.doctor.judge import judge
from minigpt.doctor.links import Link

NODES = [node(0), node(1)]


def resources(config, *nodes, free=None):
    made = [Resources(cpus=cpus, accelerators=accelerators) for cpus, accelerators in nodes]
    return checks.resources(config.cluster, made, free)


def test_resources():
    two = cluster_of(2)
    said(resources(two, (4, 0)), "ok", "1 node(s) with 4 CPU(s) for 2 worker(s)")
    said(resources(two, (1, 0), (1, 0)), "warning", "Ray Data waits", "--num-cpus")
    said(resources(two, (1, 0)), "error", "room for 1 of 2 workers", "num_workers")
    busy = Resources(cpus=1, accelerators=0)
    said(resources(two, (4, 0), free=busy), "error", "only 1 CPU(s) are free", "wait")
    # GPUs of different nodes are not put together to one worker.
    two_by_two = cluster_of(2, 2, "cuda")
    said(resources(two_by_two, (4, 4)), "ok", "and 4 GPU(s)", "of 1 CPU and 2 GPU(s)")
    said(resources(two_by_two, (4, 3), (4, 1)), "error", "room for 1 of 2 workers")
    busy = Resources(cpus=4, accelerators=3)
    said(resources(two_by_two, (4, 4), free=busy), "error", "3 GPU(s) are free")


def test_ports():
    said(checks.ports(NODES, ()), "ok", "each of 2 worker(s)")
    failed = "worker 1 cannot reach worker 0 (timed out)"
    said(checks.ports(NODES, [failed]), "error", failed, "open all ports")
    looped = [node(0), node(1, host_address="127.0.1.1")]
    said(checks.ports(looped, ()), "warning", "worker 1", "/etc/hosts")
    together = [node(rank, "a", host_address="127.0.1.1") for rank in range(2)]
    said(checks.ports(together, ()), "ok")


def test_runtime():
    said(checks.runtime(NODES, None), "ok", "2 worker(s) joined")
    said(checks.runtime(NODES, "no GPU"), "error", "no GPU", "logs")


def test_clock():
    said(checks.clock(NODES, [(0.1, 0.01), (-0.2, 0.02)]), "ok", "300 ms", "30 ms")
    said(checks.clock(NODES, [(0.0, 0.003), (0.001, 0.001)]), "ok", "0 ms between", "+- 5 ms")
    late = checks.clock(NODES, [(0.1, 0.01), (-2.0, 0.02)])
    said(late, "warning", "worker 0 on 10.0.0.0 is 2.1 s ahead of worker 1", "chrony")
    # A slow connection proves nothing.
    said(checks.clock(NODES, [(0.0, 0.5), (1.2, 0.5)]), "ok")


def test_storage():
    def judged(config=Config(), free=None, problems=()):  # noqa: B008 - frozen
        facts = StorageFacts(directory="runs", free_bytes=free, problems=problems)
        return list(checks.storage(config, 10**6, facts))

    needed = 10**6 * 3 * 4 * 4  # three checkpoints are kept, and one is being written
    shared, space = judged(free=2 * needed)
    said(shared, "ok", "runs: written and read back")
    said(space, "ok", "91.6 MiB free, 3 checkpoint(s)", "need 45.8 MiB")
    said(judged(free=2 * needed - 1)[1], "warning", "checkpoint.keep")
    said(judged(free=needed - 1)[1], "error", "make room")
    few = with_fields(Config(), checkpoint={"keep": 1})
    said(judged(few, free=needed)[1], "ok", "1 checkpoint(s)")
    (alone,) = judged(problems=("Permission denied",))
    said(alone, "error", "runs: Permission denied", "run.directory")
    said(judged(cluster_of(2), problems=("x",))[0], "error", "cluster.storage_path")


def test_links():
    measured = Link(
        axis="model",
        size=4,
        across_processes=True,
        message_bytes=2**22,
        bandwidth_bytes_per_second=1.5e9,
        latency_seconds=2e-5,
    )
    check = checks.link(measured)
    assert check.name == "link model"
    said(check, "ok", "between 4 workers", "1.5 GB/s with 4.0 MiB", "20 us")


def test_matrices():
    def judged(*rates):
        return checks.matrices(Config(), NODES, [device(matrix_flops=rate) for rate in rates])

    said(judged(1e12, 0.8e12), "ok", "800 to 1,000 GFLOP/s in float32")
    said(judged(1e12, 0.6e12), "warning", "slow: worker 1")


@pytest.mark.parametrize("known", ["nothing", "resources", "nodes", "all"])
def test_what_was_not_found_is_not_judged(known):
    config = cluster_of(2)
    found = {"driver": node(9), "failure": "why"}
    names = {"nothing": ["versions", "runtime"]}
    if known != "nothing":
        found["nodes"] = (Resources(cpus=4, accelerators=0),)
        names["resources"] = ["versions", "resources", "runtime"]
    if known in ("nodes", "all"):
        found |= {"workers": tuple(NODES), "clock_offsets": ((0.0, 0.0),) * 2, "unreachable": ()}
        found["storage"] = StorageFacts(directory="runs", free_bytes=2**40)
        names["nodes"] = ["versions", "environment", "processor", "memory", "shared memory"]
        names["nodes"] += ["storage", "space", "resources", "clock", "ports", "runtime"]
    if known == "all":
        found |= {"failure": None, "devices": (device(matrix_flops=1e9),) * 2}
        names["all"] = names["nodes"] + ["devices", "matrix products"]
    checked = judge(config, Findings(**found))
    assert [check.name for check in checked] == names[known]
    failed = [check.name for check in checked if check.level == "error"]
    assert failed == ([] if known == "all" else ["runtime"])


def test_a_machine_without_devices_or_a_mesh():
    findings = {"driver": node(), "workers": (node(),)}
    failed = Findings(**findings, failure="jax has no devices: no cuda")
    check = judge(cluster_of(0, platform="cuda"), failed)[-1]
    assert check.name == "devices"
    said(check, "error", "no cuda", "--extra cuda")
    small = Findings(**findings, devices=(device(matrix_flops=1e9),), mesh_failure="too few")
    check = judge(Config(), small)[-1]
    assert (check.name, check.level, check.found) == ("mesh", "error", "too few")
