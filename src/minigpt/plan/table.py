"""Plans as a table, a check as lines, and both as plain values."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from minigpt.plan.clusters import GIB
from minigpt.plan.search import Plan

if TYPE_CHECKING:
    from collections import Counter

    from minigpt.plan.check import Checked
    from minigpt.plan.hlo import Collective

MEMORY_TOLERANCE = 0.05


def plan_table(found: Sequence[Plan], *, total: int) -> Table:
    """A line for each plan; ``total`` were looked at."""
    cluster = found[0].cluster
    table = Table(
        title=f"{cluster.name}: {cluster.nodes} node(s) x {cluster.devices_per_node} device(s) of "
        f"{cluster.device_memory / GIB:.1f} GiB; {len(found)} of {total} plans",
        caption="seconds of a step: computing, bubbles, exchanges over each axis, optimizer",
    )
    table.add_column("pipe x data x model, microbatches", overflow="fold")
    names = ("GiB", "fits", "step", "comp", "bubble", "model", "pipe", "data", "opt")
    for name in (*names, "tok/s", "MFU %", "hours", "$"):
        table.add_column(name, justify="right")
    for plan in found:
        time = plan.time
        parts = (time.compute, time.bubble, time.tensor, time.pipe, time.data, time.optimizer)
        table.add_row(
            plan.label,
            f"{plan.memory.total / GIB:.2f}",
            "yes" if plan.fits else "NO",
            f"{time.total:.3g}",
            *(f"{part:.2g}" if part else "0" for part in parts),
            f"{plan.tokens_per_second:,.0f}",
            "-" if plan.mfu is None else f"{100 * plan.mfu:.1f}",
            f"{plan.hours:,.1f}",
            "-" if plan.dollars is None else f"{plan.dollars:,.0f}",
        )
    return table


def plan_values(plan: Plan) -> dict[str, Any]:
    """One plan for JSON; sizes in bytes, times in seconds."""
    parallel = asdict(plan.config.parallel)
    return {
        "parallel": parallel,
        "fits": plan.fits,
        "memory_bytes": {**asdict(plan.memory), "total": plan.memory.total},
        "step_seconds": {**asdict(plan.time), "total": plan.time.total},
        "tokens_per_second": plan.tokens_per_second,
        "mfu": plan.mfu,
        "hours": plan.hours,
        "dollars": plan.dollars,
    }


def check_lines(checked: "Checked") -> list[str]:
    """Predicted against compiled: memory, and exchanges by axes and kind."""
    memory = checked.memory
    state = memory.parameters + memory.optimizer
    rest = memory.total - state
    compiled = checked.argument_bytes + checked.temporary_bytes
    lines = [
        _memory_line("state", state, checked.argument_bytes),
        _memory_line("temporaries", rest, checked.temporary_bytes),
        _memory_line("memory", memory.total, compiled),
    ]
    both = (checked.traffic, checked.found)
    for axes, kind in sorted({(c.axes, c.kind) for counts in both for c in counts}):
        planned, found = (_sum(counts, axes, kind) for counts in both)
        lines.append(
            f"{kind} over {' and '.join(axes)}: planned {planned[0]:,} of {planned[1]:,} bytes in "
            f"all, compiled {found[0]:,} of {found[1]:,}: "
            f"{'equal' if planned == found else 'DIFFERENT'}"
        )
    return lines


def _sum(counts: "Counter[Collective]", axes: tuple[str, ...], kind: str) -> tuple[int, int]:
    """How many collectives, and their bytes together."""
    these = [(c.num_bytes, n) for c, n in counts.items() if (c.axes, c.kind) == (axes, kind)]
    return sum(n for _, n in these), sum(size * n for size, n in these)


def _memory_line(name: str, planned: int, compiled: int) -> str:
    return (
        f"{name}: planned {planned / 2**20:,.1f} MiB, compiled {compiled / 2**20:,.1f} MiB: "
        f"{planned / compiled:.3f}"
    )


def agrees(checked: "Checked") -> bool:
    """Whether memory is within the tolerance and every exchange as planned."""
    return abs(checked.memory_ratio - 1) <= MEMORY_TOLERANCE and checked.traffic == checked.found
