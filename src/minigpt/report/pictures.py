"""The mesh of a run and its pipeline's timeline, for the page."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from minigpt.config import Config
from minigpt.parallel.schedule import Schedule
from minigpt.plan.slots import chunk_name, colour, ink, slots
from minigpt.report.text import percent

_MOST_ROWS = 16
_UNIT, _ROW = 17, 20  # pixels of a forward unit and of a stage
_LABEL = 56


def mesh_picture(config: Config, facts: Mapping[str, Any]) -> str:
    """A panel for each pipeline stage: a row for each data group, a cell for each device."""
    mesh = facts.get("mesh")
    if not isinstance(mesh, dict):
        return '<p class="empty">the mesh is not known: the run has no events.jsonl</p>'
    pipe, data, model = (int(mesh[axis]) for axis in ("pipe", "data", "model"))
    names = [str(name) for name in facts.get("device_names", ())]
    if len(names) != pipe * data * model:
        names = [str(number) for number in range(pipe * data * model)]
    panels = [
        _stage(config, stage, (pipe, data, model), names[stage * data * model :])
        for stage in range(pipe)
    ]
    several = int(facts.get("num_processes", 1)) > 1
    meaning = "a device (process:number in it)" if several else "a device"
    return (
        f"<p>{pipe} pipe x {data} data x {model} model; a box is {meaning}, a line "
        f'is a data-parallel group.</p><div class="mesh">{"".join(panels)}</div>'
    )


def _stage(config: Config, stage: int, mesh: tuple[int, int, int], names: Sequence[str]) -> str:
    pipe, data, model = mesh
    batch = config.train.global_batch_size
    chunks = config.parallel.interleave
    per_chunk = config.model.num_layers // (pipe * chunks)
    firsts = [(chunk * pipe + stage) * per_chunk for chunk in range(chunks)]
    layers = ", ".join(
        f"{first}-{first + per_chunk - 1}" if per_chunk > 1 else str(first) for first in firsts
    )
    title = f"stage {stage}: layers {layers}" if pipe > 1 else "all layers"
    lines = [
        f'<tr><th scope="row">rows {row * batch // data}-{(row + 1) * batch // data - 1}</th>'
        + "".join(
            f'<td title="slice {peer + 1} of {model}">{escape(names[row * model + peer])}</td>'
            for peer in range(model)
        )
        + "</tr>"
        for row in range(min(data, _MOST_ROWS))
    ]
    more = f"<p>and {data - _MOST_ROWS} groups more</p>" if data > _MOST_ROWS else ""
    return (
        f'<figure><figcaption>{title}</figcaption><table class="devices">{"".join(lines)}'
        f"</table>{more}</figure>"
    )


def pipeline_picture(config: Config, facts: Mapping[str, Any]) -> str:
    """Which microbatch each stage works on when; a sentence where there is no pipeline."""
    mesh = facts.get("mesh")
    stages = int(mesh["pipe"]) if isinstance(mesh, dict) else config.parallel.pipe
    parallel = config.parallel
    if stages == 1:
        return (
            f"<p>One stage: no pipeline. A step adds up the gradients of {parallel.microbatches} "
            f"microbatch{'es' * (parallel.microbatches > 1)}.</p>"
        )
    schedule = Schedule(parallel.schedule, stages, parallel.interleave, parallel.microbatches)
    chunks = parallel.interleave
    legend = "".join(
        f'<span><i style="background:{colour(way, chunk, chunks)}"></i>{way}'
        f"{f', chunk {chunk_name(chunk)}' if chunks > 1 else ''}</span>"
        for way in ("forward", "backward")
        for chunk in ({0, chunks - 1} if chunks > 4 else range(chunks))
    )
    return (
        f"<p>{parallel.schedule}: {stages} stages, {parallel.microbatches} microbatches, "
        f"{percent(schedule.bubble)} of the time idle. Numbers are microbatches; a backward unit "
        f'takes about twice as long.</p><div class="wide">{_timeline(schedule)}</div>'
        f'<p class="legend">{legend}<span><i class="idle"></i>idle</span></p>'
    )


def _timeline(schedule: Schedule) -> str:
    columns = slots(schedule)
    width = _LABEL + _UNIT * (columns[-1].start + columns[-1].duration)
    height = _ROW * schedule.num_stages
    parts: list[str] = []
    for stage in range(schedule.num_stages):
        y = _ROW * stage
        parts.append(f'<text x="0" y="{y + 14}">stage {stage}</text>')
        for slot in columns:
            unit, x, length = slot.units[stage], _LABEL + _UNIT * slot.start, _UNIT * slot.duration
            box = f'x="{x}" y="{y + 1}" width="{length - 1}" height="{_ROW - 2}" rx="2"'
            if unit is None:
                parts.append(f'<rect class="idle" {box}/>')
                continue
            fill = colour(slot.direction, unit.chunk, schedule.interleave)
            parts.append(
                f'<rect fill="{fill}" {box}/><text x="{x + (length - 1) / 2}" y="{y + 14}" '
                f'text-anchor="middle" style="fill:{ink(fill)}">{unit.microbatch}</text>'
            )
    return (
        f'<svg class="timeline" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="pipeline timeline">{"".join(parts)}</svg>'
    )
