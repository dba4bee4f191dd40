"""A pipeline schedule as a PNG picture."""

import io
import itertools
import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from minigpt.errors import ConfigError
from minigpt.parallel.schedule import Schedule
from minigpt.plan.slots import DURATION, Slot, chunk_name, colour, ink, slots

BUBBLE = "#e9e9e9"
_DPI = 110
_ROW_INCHES = 0.34
_MOST_INCHES = 40.0  # a longer schedule gets narrower boxes
_FONT, _SMALLEST_FONT = 8.5, 4.5  # points; below, numbers are left out
_TICK_FONT = 7.0
_DIGIT = 0.64 / 72  # inches that a digit takes for each point of the font


def save_png(schedule: Schedule, path: Path) -> None:
    """Draw ``schedule`` into a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    buffer = io.BytesIO()
    smaller = {"optimize": True}
    figure(schedule).savefig(buffer, format="png", metadata={"Software": None}, pil_kwargs=smaller)
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        raise ConfigError(
            f"--png {str(path)!r} cannot be written ({error.strerror}): give a file in a folder "
            "that exists, for example schedule.png"
        ) from error


def figure(schedule: Schedule) -> Figure:
    """The drawing: a row for each stage, and a box for each unit, as long as its time."""
    columns = slots(schedule)
    time = columns[-1].start + columns[-1].duration
    digits = len(str(schedule.num_microbatches - 1))
    unit = min((digits + 1.2) * _DIGIT * _FONT, _MOST_INCHES / time)
    width = max(5.5, 1 + unit * time)
    height = 1.4 + _ROW_INCHES * schedule.num_stages
    canvas = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    axes = canvas.add_subplot()
    _draw_boxes(axes, schedule, columns, edge=min(0.8, 4 * unit))
    font = min(_FONT, unit / ((digits + 0.4) * _DIGIT))
    if font >= _SMALLEST_FONT:
        _draw_numbers(axes, schedule, columns, font)
    _draw_axes(axes, schedule, columns, unit)
    canvas.legend(
        handles=_legend(schedule),
        loc="outside lower center",
        ncols=5 if width > 8 else 3,
        frameon=False,
        fontsize=9,
        handlelength=1.2,
        columnspacing=1.4,
    )
    return canvas


def _draw_boxes(axes: Axes, schedule: Schedule, columns: list[Slot], *, edge: float) -> None:
    """One collection of boxes for each stage, the idle ones too."""
    spans = [(slot.start, slot.duration) for slot in columns]
    for stage in range(schedule.num_stages):
        colours = [
            BUBBLE
            if (unit := slot.units[stage]) is None
            else colour(slot.direction, unit.chunk, schedule.interleave)
            for slot in columns
        ]
        axes.broken_barh(
            spans, (stage - 0.5, 1), facecolors=colours, edgecolor="white", linewidth=edge
        )


def _draw_numbers(axes: Axes, schedule: Schedule, columns: list[Slot], font: float) -> None:
    for slot in columns:
        for stage, unit in enumerate(slot.units):
            if unit is not None:
                axes.text(
                    slot.start + slot.duration / 2,
                    stage,
                    str(unit.microbatch),
                    color=ink(colour(slot.direction, unit.chunk, schedule.interleave)),
                    fontsize=font,
                    ha="center",
                    va="center_baseline",
                )


def _draw_axes(axes: Axes, schedule: Schedule, columns: list[Slot], unit: float) -> None:
    stages = schedule.num_stages
    chunks = f", {schedule.interleave} chunks a stage" if schedule.interleave > 1 else ""
    kind = {"1f1b": "1F1B", "gpipe": "GPipe"}[schedule.kind]
    axes.set_title(
        f"{kind}: {stages} stages, {schedule.num_microbatches} microbatches{chunks}; "
        f"{100 * schedule.bubble:.1f} % idle",
        fontsize=11,
    )
    axes.set_xlim(0, columns[-1].start + columns[-1].duration)
    axes.set_ylim(stages - 0.5, -0.5)
    axes.set_yticks(range(stages), [f"stage {stage}" for stage in range(stages)], fontsize=9)
    axes.set_xlabel(
        "tick (its width is its time: "
        f"a forward unit takes {DURATION['forward']}, a backward unit {DURATION['backward']})",
        fontsize=9,
    )
    by_tick = itertools.groupby(columns, key=lambda slot: slot.tick)
    starts = [next(group).start for _, group in by_tick]
    axes.vlines(starts[1:], -0.5, stages - 0.5, color="white", linewidth=min(2.2, 11 * unit))
    label = (len(str(len(starts) - 1)) + 0.3) * _DIGIT * _TICK_FONT
    every = math.ceil(label / unit)
    shown = range(0, len(starts), every)
    axes.set_xticks([starts[i] for i in shown], [str(i) for i in shown], fontsize=_TICK_FONT)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _legend(schedule: Schedule) -> list[Patch]:
    chunks = schedule.interleave
    named = range(chunks) if chunks <= 4 else (0, chunks - 1)
    patches = [
        Patch(
            color=colour(way, chunk, chunks),
            label=way if chunks == 1 else f"{way}, chunk {chunk_name(chunk)}",
        )
        for way in DURATION
        for chunk in named
    ]
    return [*patches, Patch(color=BUBBLE, label="idle")]
