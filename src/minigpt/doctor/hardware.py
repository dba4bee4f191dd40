"""What was measured, as a cluster for the planner."""

import math
from collections import Counter
from collections.abc import Sequence

from minigpt.config import Config
from minigpt.doctor.facts import Findings
from minigpt.doctor.links import Link as Measured
from minigpt.parallel.mesh import mesh_shape
from minigpt.plan.clusters import Cluster, Link, Rates
from minigpt.plan.cost import rings_across_nodes
from minigpt.plan.hlo import Collective


def hardware(config: Config, findings: Findings) -> Cluster | None:
    """The cluster that was examined; None where no device was, or no mesh could be made.

    A worker counts as a node, as links between processes go over the network even where they share
    a machine. CPU devices share their machine's memory: each is given its part. Where no axis of
    the mesh lies within a worker, links inside are taken to be those between workers. A mesh of one
    device has no links, and is a cluster of one device.
    """
    devices, workers, links = findings.devices, findings.workers, findings.links
    rates = [facts.matrix_flops for facts in devices if facts.matrix_flops]
    bandwidths = [facts.memory_bandwidth for facts in devices if facts.memory_bandwidth]
    if not rates or not bandwidths or findings.mesh_failure:
        return None
    count, on_cpu = devices[0].count, devices[0].platform == "cpu"
    sharing = count * max(Counter(worker.node for worker in workers).values()) if on_cpu else 1
    total_memory = min(
        facts.memory_bytes or worker.memory_bytes
        for facts, worker in zip(devices, workers, strict=True)
    )
    shape = mesh_shape(config.parallel, count * len(devices)) if links else (1, 1, 1)
    inside = [link for link in links if not link.across_processes]
    between = [link for link in links if link.across_processes]
    between_nodes = _slowest(between, shape, count)
    return Cluster(
        name=workers[0].processor if on_cpu else devices[0].kind,
        nodes=len(devices) if links else 1,
        devices_per_node=count if links else 1,
        platform={"gpu": "cuda"}.get(devices[0].platform, devices[0].platform),
        device_memory=total_memory / sharing,
        matrix_flops=Rates(**{config.train.compute_dtype: min(rates)}),
        memory_bandwidth=min(bandwidths),
        inside_node=_slowest(inside, shape, count) or between_nodes,
        between_nodes=between_nodes,
    )


def _slowest(
    links: Sequence[Measured], shape: tuple[int, int, int], devices_per_node: int
) -> Link | None:
    """The links that several axes share, as the planner counts with them."""
    if not links:
        return None

    def rings(link: Measured) -> int:
        collective = Collective("all-reduce", (link.axis,), 1)
        return max(1, rings_across_nodes(collective, shape, devices_per_node))

    return Link(
        bandwidth=min(link.bandwidth_bytes_per_second * rings(link) for link in links),
        latency=max(link.latency_seconds / (2 * math.ceil(math.log2(link.size))) for link in links),
    )
