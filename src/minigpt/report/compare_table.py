"""A comparison as tables for a terminal, and as JSON."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from minigpt.report.compare import Comparison, Side, differing_fields
from minigpt.report.text import count, duration, money, percent
from minigpt.report.time_split import USES

_UNKNOWN = "-"


def facts_table(comparison: Comparison) -> Table:
    """A column for each run."""
    table = _empty_table(comparison)
    for group in (_goal_rows, _cost_rows, _speed_rows, _place_rows):
        for label, cells in group(comparison):
            table.add_row(label, *map(Text, cells))
        table.add_section()
    for name, values in differing_fields(comparison).items():
        table.add_row(name, *(Text(str(value)) for value in values))
    return table


def samples_table(comparison: Comparison) -> Table:
    """The last samples of each run, a row for each prompt."""
    table = _empty_table(comparison, "prompt", show_lines=True)
    sides = comparison.sides
    prompts = dict.fromkeys(s.prompt for side in sides for s in side.last_samples)
    for prompt in prompts:
        texts = (
            next((s.text for s in side.last_samples if s.prompt == prompt), _UNKNOWN)
            for side in sides
        )
        table.add_row(*(Text(_printable(text)) for text in (prompt, *texts)))
    return table


def _printable(text: str) -> str:
    """Without what a terminal would take for a command."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


def _empty_table(comparison: Comparison, first: str = "", *, show_lines: bool = False) -> Table:
    table = Table(box=SIMPLE_HEAD, show_lines=show_lines, pad_edge=False)
    table.add_column(first, style="dim", overflow="fold")
    for side in comparison.sides:
        table.add_column(Text(side.name), overflow="fold", ratio=1 if show_lines else None)
    return table


Rows = list[tuple[str, list[str]]]


def _row(comparison: Comparison, label: str, cell: Callable[[Side], str]) -> tuple[str, list[str]]:
    return label, [cell(side) for side in comparison.sides]


def _goal_rows(comparison: Comparison) -> Rows:
    """What it took to reach the loss."""
    sides = comparison.sides
    times = [side.reached.seconds if side.reached else None for side in sides]
    costs = [side.reached.dollars if side.reached else None for side in sides]
    goal = f"to {comparison.loss:.4f}"
    return [
        (f"time {goal}", _against_best(times, duration, "never")),
        (f"money {goal}", _against_best(costs, money, _UNKNOWN)),
        _row(
            comparison, f"steps {goal}", lambda s: f"{s.reached.step:,}" if s.reached else "never"
        ),
        _row(
            comparison,
            f"tokens {goal}",
            lambda s: count(s.reached.tokens) if s.reached else "never",
        ),
        _row(comparison, "lowest loss", lambda s: f"{min(loss for _, loss in s.losses):.4f}"),
        _row(comparison, "last loss", lambda s: f"{s.losses[-1][1]:.4f}"),
    ]


def _against_best(
    values: Sequence[float | None], show: Callable[[float], str], unknown: str
) -> list[str]:
    """Each value, with how many times the smallest it is."""
    known = [value for value in values if value is not None]
    best = min(known, default=0.0)

    def cell(value: float | None) -> str:
        if value is None:
            return unknown
        if len(known) < 2 or best <= 0:
            return show(value)
        return f"{show(value)} ({value / best:.2f} x)"

    return [cell(value) for value in values]


def _cost_rows(comparison: Comparison) -> Rows:
    """All that was spent, and on what."""

    def spent(use: str) -> Callable[[Side], str]:
        def cell(side: Side) -> str:
            seconds, elapsed = side.split.seconds[use], side.split.elapsed
            return f"{duration(seconds)} ({percent(seconds / elapsed if elapsed else 0.0)})"

        return cell

    def cost(side: Side) -> str:
        dollars = side.dollars(side.split.elapsed)
        return _UNKNOWN if dollars is None else money(dollars)

    return [
        _row(comparison, "all time", lambda side: duration(side.split.elapsed)),
        *(
            _row(comparison, f"  {label}", spent(use))
            for use, label in USES.items()
            if any(side.split.seconds[use] > 0 for side in comparison.sides)
        ),
        _row(comparison, "all money", cost),
        _row(
            comparison,
            "price per hour",
            lambda s: _UNKNOWN if s.price_per_hour is None else money(s.price_per_hour),
        ),
    ]


def _speed_rows(comparison: Comparison) -> Rows:
    def overall(side: Side) -> str:
        elapsed = side.split.elapsed
        return count(side.run.tokens / elapsed) if elapsed > 0 else _UNKNOWN

    return [
        _row(comparison, "steps, tokens", lambda s: f"{s.run.step:,}, {count(s.run.tokens)}"),
        _row(
            comparison,
            "tokens/s in steps (median)",
            lambda s: _UNKNOWN if s.tokens_per_second is None else count(s.tokens_per_second),
        ),
        _row(comparison, "tokens/s of all time", overall),
        _row(comparison, "MFU (median)", lambda s: "n/a" if s.mfu is None else percent(s.mfu)),
        _row(comparison, "starts", lambda s: str(len(s.run.attempts) or _UNKNOWN)),
    ]


def _place_rows(comparison: Comparison) -> Rows:
    """What each ran on; with arrows where restarts changed it."""

    def fact(name: str) -> Callable[[Side], str]:
        return lambda side: " -> ".join(map(str, side.run.facts_of_all(name))) or _UNKNOWN

    def mesh(side: Side) -> str:
        shapes = side.run.facts_of_all("mesh")
        return " -> ".join(" x ".join(map(str, shape.values())) for shape in shapes) or _UNKNOWN

    def hardware(side: Side) -> str:
        facts = side.run.facts
        if not facts:
            return _UNKNOWN
        return f"{facts['num_devices']} x {facts['device_kind']}"

    return [
        _row(
            comparison,
            "launcher",
            lambda s: " -> ".join(dict.fromkeys(a.launcher for a in s.run.attempts)) or _UNKNOWN,
        ),
        _row(comparison, "hardware", hardware),
        _row(comparison, "nodes", fact("num_nodes")),
        _row(comparison, "processes", fact("num_processes")),
        _row(comparison, "mesh (pipe x data x model)", mesh),
        _row(
            comparison,
            "parameters",
            lambda s: count(s.run.facts["num_parameters"]) if s.run.facts else _UNKNOWN,
        ),
    ]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything of the tables, in seconds, US dollars and tokens; null is unknown or never."""
    return {
        "loss": comparison.loss,
        "loss_is_given": comparison.loss_is_given,
        "split": comparison.split,
        "warnings": list(comparison.warnings),
        "differing_fields": differing_fields(comparison),
        "runs": [_side_as_json(side) for side in comparison.sides],
    }


def _side_as_json(side: Side) -> dict[str, Any]:
    reached, elapsed = side.reached, side.split.elapsed
    return {
        "name": side.name,
        "path": str(side.run.path),
        "reached": reached
        and {
            "step": reached.step,
            "tokens": reached.tokens,
            "seconds": reached.seconds,
            "dollars": reached.dollars,
        },
        "lowest_loss": min(loss for _, loss in side.losses),
        "last_loss": side.losses[-1][1],
        "step": side.run.step,
        "tokens": side.run.tokens,
        "elapsed_seconds": elapsed,
        "time_split": dict(side.split.seconds),
        "dollars": side.dollars(elapsed),
        "price_per_hour": side.price_per_hour,
        "tokens_per_second": side.tokens_per_second,
        "mfu": side.mfu,
        "launchers": list(dict.fromkeys(attempt.launcher for attempt in side.run.attempts)),
        "facts": dict(side.run.facts),
        "samples": [{"prompt": s.prompt, "text": s.text} for s in side.last_samples],
    }
