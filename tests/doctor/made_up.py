"""Facts of nodes that nobody has, and what is expected of their checks."""

from minigpt.config import Config
from minigpt.config_parallel import ClusterConfig
from minigpt.doctor.facts import DeviceFacts, NodeFacts

GIB = 2**30
VERSIONS = {"python": "3.12.1", "jax": "0.12.0"}


def node(rank=0, where=None, **changes):
    """A worker, each on a node of its own unless it is said."""
    where = f"10.0.0.{rank}" if where is None else where
    facts = {
        "process": f"worker {rank} on {where}",
        "node": where,
        "versions": VERSIONS,
        "processor": "EPYC",
        "num_cores": 8.0,
        "instruction_sets": ("avx2",),
        "memory_bytes": 16 * GIB,
        "available_bytes": 8 * GIB,
        "shared_memory_bytes": 4 * GIB,
        "environment": {},
        "host_address": where,
    }
    return NodeFacts(**facts | changes)


def device(platform="cpu", count=1, **changes):
    """What jax found in a worker."""
    kind = {"cpu": "cpu", "gpu": "NVIDIA H200", "tpu": "TPU v4"}[platform]
    return DeviceFacts(**{"platform": platform, "kind": kind, "count": count} | changes)


def cluster_of(num_workers, devices=1, platform="cpu", **groups):
    """A configuration for a cluster."""
    cluster = ClusterConfig(num_workers=num_workers, devices_per_worker=devices, platform=platform)
    return Config(cluster=cluster, **groups)


def said(check, level, *fragments):
    """The check has the level and says all this; only what is not right has a remedy."""
    assert check.level == level
    assert bool(check.remedy) == (level != "ok")
    for fragment in fragments:
        assert fragment in f"{check.found}; {check.remedy}"
