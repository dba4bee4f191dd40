"""``minigpt plan``."""

from pathlib import Path

from minigpt.commands.options import parse_config, take_flag, take_option
from minigpt.errors import ConfigError


def run(arguments: list[str]) -> None:
    """Draw the pipeline schedule of a configuration."""
    pictures, rest = take_option(arguments, "--png", "FILE.png")
    draw, rest = take_flag(rest, "--schedule")
    config = parse_config(
        rest,
        prog="minigpt plan --schedule",
        description="Draw the pipeline schedule of a configuration: which microbatch each stage "
        "works on at each tick. --png FILE.png draws a picture too.",
    )
    parallel = config.parallel
    example = "minigpt plan --schedule --parallel.pipe 4 --parallel.microbatches 8"
    if not draw:
        raise ConfigError(
            "minigpt plan needs --schedule: a pipeline schedule is what it can draw; "
            f"for example {example}"
        )
    if parallel.pipe == 1:
        raise ConfigError(
            "parallel.pipe is 1: one stage has no pipeline to draw; use parallel.pipe 2 or more, "
            f"for example {example}"
        )
    from rich.console import Console

    from minigpt.parallel.schedule import Schedule
    from minigpt.plan.timeline import timeline

    schedule = Schedule(
        parallel.schedule, parallel.pipe, parallel.interleave, parallel.microbatches
    )
    if pictures:  # matplotlib takes a second to import
        from minigpt.plan.picture import save_png

        for file in pictures:
            save_png(schedule, Path(file))
    console = Console()
    console.print(timeline(schedule, console.width), soft_wrap=True)
    for file in pictures:
        console.print(f"saved {file}", markup=False, highlight=False, soft_wrap=True)
