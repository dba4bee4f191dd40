"""A pipeline schedule as text: rows are stages, columns are ticks."""

import dataclasses
import itertools
from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

from minigpt.parallel.schedule import Schedule, Unit
from minigpt.plan.slots import Direction, Slot, chunk_name, colour, ink, slots

_GAP = "  "  # between ticks; the two units of a tick stand together
_MOST_BANDS = 6  # a longer drawing is cut in the middle


def timeline(schedule: Schedule, width: int) -> Text:
    """The drawing, a legend and a summary.

    Args:
        schedule: what to draw.
        width: characters in a line. A longer drawing goes on below; one that would go on very
            often keeps its beginning and its end, and says so.
    """
    parts = [Text(_headline(schedule), style="bold"), *_bands(schedule, width)]
    return Text("\n\n").join([*parts, Text("\n".join(_notes(schedule)))])


def _bands(schedule: Schedule, width: int) -> list[Text]:
    """The drawing, cut into bands of as many ticks as fit into ``width``."""
    cell = _cell_width(schedule)
    label = len(_row_label(schedule.num_stages - 1))
    bands: list[list[list[Slot]]] = []
    room = 0
    for _, group in itertools.groupby(slots(schedule), key=lambda slot: slot.tick):
        tick = list(group)
        needed = len(_GAP) + cell * len(tick)
        if not bands or needed > room:
            bands.append([])
            room = width - label
        bands[-1].append(tick)
        room -= needed
    drawn = [_band(schedule, band, cell) for band in bands]
    if len(bands) <= _MOST_BANDS:
        return drawn
    half = _MOST_BANDS // 2
    first, last = bands[half][0][0].tick, bands[-half][0][0].tick - 1
    cut = f"... ticks {first} to {last} are left out: a wider terminal or --png FILE shows all ..."
    return [*drawn[:half], Text(cut, style="italic"), *drawn[-half:]]


def _band(schedule: Schedule, ticks: Sequence[Sequence[Slot]], cell: int) -> Text:
    label = len(_row_label(schedule.num_stages - 1))
    numbers = [str(tick[0].tick).ljust(cell * len(tick)) for tick in ticks]
    lines = [Text(_GAP.join(["tick".ljust(label), *numbers]).rstrip(), style="dim")]
    for stage in range(schedule.num_stages):
        line = Text(_row_label(stage).ljust(label))
        for tick in ticks:
            line.append(_GAP)
            for slot in tick:
                _append(line, schedule, slot.units[stage], slot.direction, cell)
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def _append(
    line: Text, schedule: Schedule, unit: Unit | None, direction: Direction, cell: int
) -> None:
    if unit is None:
        line.append("." * cell, style="dim")
        return
    background = colour(direction, unit.chunk, schedule.interleave)
    style = Style(color=ink(background), bgcolor=background)
    line.append(_label(schedule, direction, unit.microbatch, unit.chunk).ljust(cell), style=style)


def _row_label(stage: int) -> str:
    return f"stage {stage}"


def _label(schedule: Schedule, direction: Direction, microbatch: int, chunk: int) -> str:
    """F3: microbatch 3 forward; B3b: microbatch 3 backward through the second chunk."""
    name = chunk_name(chunk) if schedule.interleave > 1 else ""
    return f"{direction[0].upper()}{microbatch}{name}"


def _cell_width(schedule: Schedule) -> int:
    """Room for the longest label, and for a tick's number if the gap after it is used."""
    longest = _label(schedule, "forward", schedule.num_microbatches - 1, schedule.interleave - 1)
    return max(len(longest), len(str(schedule.num_ticks - 1)) - 1)


def _headline(schedule: Schedule) -> str:
    chunks = f", v = {schedule.interleave} chunks a stage" if schedule.interleave > 1 else ""
    return (
        f"{schedule.kind}: P = {schedule.num_stages} stages, "
        f"M = {schedule.num_microbatches} microbatches{chunks}"
    )


def _notes(schedule: Schedule) -> list[str]:
    """The legend, then time, idle time and memory beside the formulas (Narayanan et al. 2021)."""
    stages, chunks = schedule.num_stages, schedule.interleave
    work, total = chunks * schedule.num_microbatches, "M" if chunks == 1 else "v M"
    if schedule.kind == "1f1b":
        ticks = work + chunks * stages + stages - 2
        formula = "M + 2 P - 2" if chunks == 1 else "v M + v P + P - 2"
    else:
        ticks, formula = 2 * (work + stages - 1), f"2 ({total} + P - 1)"
    bubble = (stages - 1) / (work + stages - 1)
    first_chunk = ", chunk a of the stage" if chunks > 1 else ""
    rows = [
        (_label(schedule, "forward", 0, 0), f"microbatch 0 forward{first_chunk}"),
        (_label(schedule, "backward", 0, 0), "the same backward; takes about twice as long"),
        ("." * _cell_width(schedule), "idle"),
        ("ticks", f"{schedule.num_ticks} ({formula} = {ticks})"),
        (
            "idle",
            f"{100 * schedule.bubble:.1f} % of the time "
            f"((P - 1) / ({total} + P - 1) = {100 * bubble:.1f} %)",
        ),
        ("waiting", f"units on a stage, at most {schedule.num_slots}"),
    ]
    rounded = -(-schedule.num_microbatches // stages) * stages
    full = dataclasses.replace(schedule, num_microbatches=rounded)
    if full.bubble < schedule.bubble and chunks > 1 and rounded > schedule.num_microbatches:
        rows.append(
            (
                "note",
                f"chunks take microbatches in groups of {stages}: {rounded} would leave "
                f"{100 * full.bubble:.1f} % idle",
            )
        )
    margin = max(len(name) for name, _ in rows) + 2
    return [name.ljust(margin) + text for name, text in rows]
