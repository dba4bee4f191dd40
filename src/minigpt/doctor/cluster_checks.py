"""Judges what was found between nodes: pure functions from facts to checks."""

from collections.abc import Iterator, Sequence

from minigpt.config import ClusterConfig, Config
from minigpt.doctor.checks import Check, size
from minigpt.doctor.facts import DeviceFacts, NodeFacts, Resources, StorageFacts
from minigpt.doctor.links import Link

_SKEW_SECONDS = 1.0
_SLOW_SHARE = 0.7
"""A device this much slower than the fastest one holds all others up."""


def resources(cluster: ClusterConfig, nodes: Sequence[Resources], free: Resources | None) -> Check:
    """Room in the Ray cluster for all workers, and a CPU for Ray Data beside them."""
    devices = cluster.devices_per_worker
    needs_devices = cluster.platform != "cpu"
    fitting = sum(
        min(int(n.cpus), int(n.accelerators // devices)) if needs_devices else int(n.cpus)
        for n in nodes
    )
    cpus, accelerators = sum(n.cpus for n in nodes), sum(n.accelerators for n in nodes)
    kind = {"cpu": "", "cuda": "GPU", "tpu": "TPU"}[cluster.platform]
    shown = f"{len(nodes)} node(s) with {cpus:g} CPU(s)"
    shown += f" and {accelerators:g} {kind}(s)" if kind else ""
    each = f"1 CPU and {devices} {kind}(s)" if kind else "1 CPU"
    if fitting < cluster.num_workers:
        found = f"{shown} have room for {fitting} of {cluster.num_workers} workers of {each}"
        remedy = "add nodes (or wait for them), or use fewer cluster.num_workers"
        return Check("resources", "error", found, remedy)
    wanted = cluster.num_workers * devices if needs_devices else 0
    if free and (free.cpus < cluster.num_workers or free.accelerators < wanted):
        found = f"{shown}, but only {free.cpus:g} CPU(s) "
        found += f"and {free.accelerators:g} {kind}(s) are free" if kind else "are free"
        return Check("resources", "error", found, "wait for other jobs of the cluster, or end them")
    if cpus <= cluster.num_workers:
        found = f"{shown}: the workers hold all of them, and Ray Data waits for ever"
        remedy = "give the cluster one more CPU (ray start --num-cpus; it is only a number)"
        return Check("resources", "warning", found, remedy)
    return Check("resources", "ok", f"{shown} for {cluster.num_workers} worker(s) of {each}")


def ports(workers: Sequence[NodeFacts], unreachable: Sequence[str]) -> Check:
    """Every worker can connect to every other, and names lead to the right addresses."""
    if unreachable:
        remedy = (
            "open all ports between the nodes (jax, gloo, NCCL and Ray use free ones), and check "
            "that each node can be reached at the address Ray has for it"
        )
        return Check("ports", "error", ", ".join(unreachable), remedy)
    looped = [w.process for w in workers if (w.host_address or "127.").startswith("127.")]
    if looped and len({worker.node for worker in workers}) > 1:
        found = f"the host's own name is not its address for {', '.join(looped)}"
        remedy = "correct /etc/hosts: gloo and NCCL listen where the host's name leads"
        return Check("ports", "warning", found, remedy)
    return Check("ports", "ok", f"each of {len(workers)} worker(s) can reach all others")


def runtime(workers: Sequence[NodeFacts], failure: str | None) -> Check:
    """Whether the workers could be joined to one jax runtime."""
    if failure:
        remedy = "see the other checks, and the logs of Ray's workers (ray logs)" if workers else ""
        return Check("runtime", "error", failure, remedy)
    return Check("runtime", "ok", f"{len(workers)} worker(s) joined one jax runtime")


def clock(workers: Sequence[NodeFacts], offsets: Sequence[tuple[float, float]]) -> Check:
    """Clocks agree, so that times in logs and on files compare."""
    first = min(range(len(offsets)), key=lambda rank: offsets[rank][0])
    last = max(range(len(offsets)), key=lambda rank: offsets[rank][0])
    skew = offsets[last][0] - offsets[first][0]
    unsure = offsets[first][1] + offsets[last][1]
    if skew <= unsure:  # the clocks may be the same
        skew, unsure = 0.0, skew + unsure
    found = f"{1e3 * skew:.0f} ms between workers, +- {1e3 * unsure:.0f} ms"
    if skew - unsure > _SKEW_SECONDS:
        found = f"{workers[last].process} is {skew:.1f} s ahead of {workers[first].process}"
        return Check("clock", "warning", found, "synchronise the nodes' clocks (chrony, ntpd)")
    return Check("clock", "ok", found)


def storage(config: Config, num_parameters: int, facts: StorageFacts) -> Iterator[Check]:
    """All processes write to it and read what the others wrote; checkpoints fit."""
    if facts.problems:
        remedy = (
            "use a cluster.storage_path on storage that all nodes share and may write to"
            if config.cluster.num_workers
            else "use a run.directory that you may write to"
        )
        found = f"{facts.directory}: {', '.join(facts.problems)}"
        yield Check("storage", "error", found, remedy)
    else:
        yield Check("storage", "ok", f"{facts.directory}: written and read back by all")
    if facts.free_bytes is None:
        return
    keep = config.checkpoint.keep
    needed = num_parameters * 3 * 4 * (keep + 1)
    found = (
        f"{size(facts.free_bytes)} free, {keep} checkpoint(s) and the one being written need "
        f"{size(needed)}"
    )
    remedy = f"make room, or use a smaller checkpoint.keep than {keep}"
    if facts.free_bytes < needed:
        yield Check("space", "error", found, remedy)
    elif facts.free_bytes < 2 * needed:
        yield Check("space", "warning", found, remedy)
    else:
        yield Check("space", "ok", found)


def link(measured: Link) -> Check:
    """What an all-reduce along an axis reaches; there is no right value to compare with."""
    between = "workers" if measured.across_processes else "devices of a worker"
    return Check(
        f"link {measured.axis}",
        "ok",
        f"all-reduce between {measured.size} {between}: "
        f"{measured.bandwidth_bytes_per_second / 1e9:.3g} GB/s with {size(measured.message_bytes)} "
        f"a device, {1e6 * measured.latency_seconds:,.0f} us for one number",
    )


def matrices(config: Config, workers: Sequence[NodeFacts], found: Sequence[DeviceFacts]) -> Check:
    """The workers' devices are about as fast as each other."""
    rates = {
        worker.process: facts.matrix_flops
        for worker, facts in zip(workers, found, strict=True)
        if facts.matrix_flops
    }
    best = max(rates.values())
    dtype = config.train.compute_dtype
    shown = (
        f"{min(rates.values()) / 1e9:,.0f} to {best / 1e9:,.0f}"
        if len(rates) > 1
        else (f"{best / 1e9:,.0f}")
    )
    found_text = f"{shown} GFLOP/s in {dtype} on a device of each worker"
    slow = [process for process, rate in rates.items() if rate < _SLOW_SHARE * best]
    if slow:
        found_text += f"; slow: {', '.join(slow)}"
        remedy = "look for other work on these nodes, heat or another kind of device"
        return Check("matrix products", "warning", found_text, remedy)
    return Check("matrix products", "ok", found_text)
