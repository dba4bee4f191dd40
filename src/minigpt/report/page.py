"""One run as one HTML file that needs nothing else: no network, no other file."""

from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path

from minigpt.errors import ConfigError
from minigpt.report.charts import run_charts
from minigpt.report.page_parts import (
    attempts_table,
    configuration,
    environment,
    memory,
    samples,
    status,
    tiles,
    time_table,
)
from minigpt.report.pictures import mesh_picture, pipeline_picture
from minigpt.report.run import Run, read_run
from minigpt.report.svg import svg
from minigpt.report.time_split import time_split

REPORT_FILE = "report.html"


def write_report(directory: Path, file: Path | None = None) -> Path:
    """Write the page of a run directory, into it if no file is given, and return where.

    Raises:
        CheckpointError: it is not a run directory.
        ConfigError: a file of it cannot be read, or the page cannot be written.
    """
    target = file or directory / REPORT_FILE
    text = page(read_run(directory))
    temporary = target.with_name(target.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        temporary.replace(target)
    except OSError as error:
        raise ConfigError(
            f"the report {str(target)!r} cannot be written ({error.strerror}): give a file in a "
            "folder that exists and that you may write to, for example --output report.html"
        ) from error
    return target


def page(run: Run) -> str:
    """The page as text."""
    charts = "".join(
        f'<div class="card"><h3>{escape(chart.title)} <span class="soft">'
        f"{escape(chart.y_label)}</span></h3>{svg(chart)}</div>"
        for chart in run_charts(run)
    )
    split = time_split(run)
    sections = [
        ("Curves", f'<div class="charts">{charts}</div>{_marks_note(run)}'),
        ("Where the time went", time_table(split)),
        ("Starts and restarts", attempts_table(run)),
        ("Mesh", mesh_picture(run.config, run.facts)),
        ("Pipeline", pipeline_picture(run.config, run.facts)),
        ("Memory of a device", memory(run)),
        ("Samples", samples(run)),
        ("Configuration", configuration(run)),
        ("Environment", environment(run)),
    ]
    body = "".join(f"<section><h2>{title}</h2>{content}</section>" for title, content in sections)
    resources = files("minigpt.report")
    style, script = (
        resources.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js")
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(run.name)} - MiniGPT</title><style>{style}</style></head>\n"
        f"<body><header><h1>{escape(run.name)}</h1><p>{status(run)}{_written(run)}</p>"
        f"{tiles(run, split)}</header>\n{body}\n<script>{script}</script></body></html>\n"
    )


def _written(run: Run) -> str:
    if not run.attempts:
        return ""
    begin, end = (
        datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")
        for moment in (run.attempts[0].begin, run.attempts[-1].end)
    )
    return f' <span class="soft">{begin} to {end} UTC</span>'


def _marks_note(run: Run) -> str:
    if not any(attempt.ready and attempt.ready.step > 0 for attempt in run.attempts[1:]):
        return ""
    return '<p class="soft">Dashed lines: where the run was continued from a checkpoint.</p>'
