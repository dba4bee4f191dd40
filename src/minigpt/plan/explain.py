"""Says in sentences and figures why a plan is the first, and what a cluster of nodes costs."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from minigpt.plan.clusters import GIB, Cluster
from minigpt.plan.cost import StepTime, rings_across_nodes
from minigpt.plan.hlo import AXES, Collective
from minigpt.plan.memory import Memory
from minigpt.plan.search import Plan

_TIMES = {
    "compute": "computing",
    "optimizer": "the optimizer",
    "bubble": "bubbles",
    "tensor": "exchanges of tensor-parallel peers",
    "pipe": "exchanges between stages",
    "data": "adding up gradients",
}

Search = Callable[[Cluster], Sequence[Plan]]


def explain(found: Sequence[Plan], search: Search) -> list[str]:
    """Paragraphs about the first of the plans found.

    Args:
        found: of ``plans``; at least one.
        search: all plans of the same run on another cluster, the best first, none if it cannot run.
    """
    best = found[0]
    if not best.fits:
        return [*_nothing_fits(best, search)]
    return [
        _about(best),
        *_against(best, found[1:]),
        _memory(best),
        *_across_nodes(best),
        *_same_devices_in_one_node(best, search),
        *_one_of_the_nodes(best, search),
    ]


def _about(best: Plan) -> str:
    time = best.time
    parts = sorted(_TIMES, key=lambda name: -getattr(time, name))
    shares = [
        f"{100 * getattr(time, name) / time.total:.0f} % {_TIMES[name]}"
        for name in parts
        if getattr(time, name) >= 0.005 * time.total
    ]
    mfu = "" if best.mfu is None else f", {100 * best.mfu:.0f} % of the peak"
    price = "" if best.dollars is None else f" and ${best.dollars:,.0f}"
    tokens = best.tokens_per_step * best.config.train.steps
    return (
        f"{best.label} is the fastest that fits: {_seconds(time.total)} a step, of which "
        f"{', '.join(shares)}. That is {best.tokens_per_second:,.0f} tokens/s{mfu}; the run's "
        f"{tokens:,} tokens take {best.hours:,.1f} hours{price}."
    )


def _against(best: Plan, others: Sequence[Plan]) -> list[str]:
    """The second, and the best of another mesh where the second has the same one."""
    fitting = [plan for plan in others if plan.fits]
    lines = [_difference(best, fitting[0], "the second")] if fitting else []
    other_mesh = [plan for plan in fitting[1:] if plan.shape != best.shape]
    if fitting and fitting[0].shape == best.shape and other_mesh:
        lines.append(_difference(best, other_mesh[0], "the best of another mesh"))
    missed = [p for p in others if not p.fits and p.time.total < best.time.total]
    if missed:
        faster = min(missed, key=lambda plan: plan.memory.total)
        lines.append(
            f"{faster.label} would be faster ({_seconds(faster.time.total)}), but needs "
            f"{faster.memory.total / GIB:.1f} GiB of the {_device_gib(best):.1f} of a device."
        )
    return lines


def _difference(best: Plan, other: Plan, name: str) -> str:
    gains = {
        field.name: getattr(other.time, field.name) - getattr(best.time, field.name)
        for field in fields(StepTime)
    }
    least = 0.001 * best.time.total
    less = [f"{_seconds(g)} less {_TIMES[n]}" for n, g in gains.items() if g > least]
    more = [f"{_seconds(-g)} more {_TIMES[n]}" for n, g in gains.items() if g < -least]
    slower = other.time.total / best.time.total - 1
    why = "; ".join(filter(None, (", ".join(less), ", ".join(more))))
    return (
        f"Against {name}, {other.label} ({_seconds(other.time.total)}, {100 * slower:.1f} % "
        f"slower): {why or 'no part differs by as much as a thousandth'}."
    )


def _memory(best: Plan) -> str:
    parts = sorted(fields(Memory), key=lambda field: -getattr(best.memory, field.name))
    largest = ", ".join(
        f"{field.name} {getattr(best.memory, field.name) / GIB:.2f}" for field in parts[:4]
    )
    return (
        f"Memory of a device: {best.memory.total / GIB:.2f} of {_device_gib(best):.1f} GiB "
        f"({largest})."
    )


def _across_nodes(best: Plan) -> list[str]:
    cluster, shape = best.cluster, best.shape
    crossing = [
        axis
        for axis, size in zip(AXES, shape, strict=True)
        if size > 1
        and rings_across_nodes(
            Collective("all-reduce", (axis,), 1), shape, cluster.devices_per_node
        )
    ]
    if not crossing:
        return []
    warning = (
        " Tensor-parallel peers in different nodes exchange activations in every layer: only where "
        "nothing else fits or the network is as fast as the links inside a node."
        if "model" in crossing
        else ""
    )
    return [f"Across nodes goes what is exchanged over {' and '.join(crossing)}.{warning}"]


def _same_devices_in_one_node(best: Plan, search: Search) -> list[str]:
    """What the network costs: the same devices with the links of one node."""
    cluster = best.cluster
    if cluster.nodes == 1:
        return []
    inside = cluster.inside_node
    if inside is None:
        return []
    together = replace(cluster, nodes=1, devices_per_node=cluster.num_devices)
    fitting = [plan for plan in search(together) if plan.fits]
    if not fitting:
        return []
    one = fitting[0]
    slower = best.time.total / one.time.total - 1
    return [
        f"On one node with the same {cluster.num_devices} devices {one.label} would take "
        f"{_seconds(one.time.total)} a step: {cluster.nodes} nodes are {100 * slower:.1f} % "
        f"slower, {_seconds(best.time.total - one.time.total)} a step, because {_rate(cluster)} "
        f"between nodes stands against {inside.bandwidth / 1e9:.1f} GB/s of each device inside a "
        "node."
    ]


def _rate(cluster: Cluster) -> str:
    assert cluster.between_nodes is not None, "a cluster of several nodes has it"
    shared = "" if cluster.devices_per_node == 1 else f" for {cluster.devices_per_node} devices"
    return f"{cluster.between_nodes.bandwidth / 1e9:.1f} GB/s of each node{shared}"


def _one_of_the_nodes(best: Plan, search: Search) -> list[str]:
    """What more nodes bring, and cost for the same tokens."""
    cluster = best.cluster
    if cluster.nodes == 1:
        return []
    fitting = [plan for plan in search(replace(cluster, nodes=1)) if plan.fits]
    if not fitting:
        return [f"One of these nodes alone could not hold the run: {cluster.nodes} make it fit."]
    one = fitting[0]
    speedup = one.time.total / best.time.total
    price = ""
    if best.dollars is not None and one.dollars is not None:
        price = f", and the run costs ${best.dollars:,.0f} instead of ${one.dollars:,.0f}"
    return [
        f"One of these nodes alone would take {_seconds(one.time.total)} a step ({one.label}): "
        f"{cluster.nodes} are {speedup:.1f} times as fast, {100 * speedup / cluster.nodes:.0f} % "
        f"of what {cluster.nodes} times the devices could bring{price}."
    ]


def _nothing_fits(nearest: Plan, search: Search) -> list[str]:
    cluster = nearest.cluster
    lines = [
        f"Nothing fits. The nearest, {nearest.label}, needs {nearest.memory.total / GIB:.1f} GiB "
        f"of the {_device_gib(nearest):.1f} of a device. {_memory(nearest)}"
    ]
    if cluster.between_nodes is not None:
        for nodes in range(cluster.nodes + 1, 8 * cluster.nodes + 1):
            fitting = [plan for plan in search(replace(cluster, nodes=nodes)) if plan.fits]
            if fitting:
                lines.append(f"With {nodes} nodes {fitting[0].label} fits.")
                break
    lines.append(
        "A smaller model.embed_dim or model.num_layers, or a shorter model.seq_length, needs less."
    )
    return lines


def _device_gib(plan: Plan) -> float:
    return plan.cluster.device_memory / GIB


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
