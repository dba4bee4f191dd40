"""``minigpt report``."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from tyro.conf import Positional


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Write one run as an HTML page that needs no network and no other file."""

    run: Positional[Path]
    """The run directory, for example runs/mini."""
    output: Path | None = None
    """The file to write; none: report.html in the run directory."""
    png_dir: Path | None = None
    """Folder for the curves as PNG pictures too."""


def run(arguments: list[str]) -> None:
    """Write the page, and pictures if asked for, and say where."""
    options = tyro.cli(ReportArguments, prog="minigpt report", args=arguments)
    from minigpt.report.page import write_report

    print(f"saved {write_report(options.run, options.output)}")
    if options.png_dir is not None:  # matplotlib takes a second to import
        from minigpt.report.charts import run_charts
        from minigpt.report.png import save_each
        from minigpt.report.run import read_run

        for file in save_each(run_charts(read_run(options.run)), options.png_dir):
            print(f"saved {file}")
