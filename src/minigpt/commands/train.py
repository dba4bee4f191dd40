"""``minigpt train``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.commands.options import parse_config
from minigpt.errors import InterruptedRunError, NonFiniteError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.launch.training import Outcome


def run(arguments: list[str]) -> None:
    """Train, then say how it ended and what to do next."""
    config = parse_config(arguments, prog="minigpt train", description="Train a GPT.")
    from minigpt.train.console import make_console

    console = make_console()
    if config.run.wandb_project is not None:
        from minigpt.train.wandb_sink import load_wandb

        load_wandb(config.run.wandb_project)  # before anything is tokenised
    if config.cluster.num_workers > 0:
        # Read when Ray is imported: else `uv run` gives each worker an environment of its own.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        from minigpt.launch.ray import train
        from minigpt.launch.ray_connect import on_shared_storage

        config = on_shared_storage(config)
    else:
        from minigpt.launch.local import train
    directory = Path(config.run.directory) / config.run.name
    try:
        outcome = train(config, console)
    except (InterruptedRunError, NonFiniteError):
        _report(directory, console)
        raise
    _say_how_it_ended(outcome, console)
    _report(directory, console)


def _report(directory: Path, console: "Console") -> None:
    """Write the page of the run, if it came so far that there is one."""
    from minigpt.report.page import write_report
    from minigpt.train.events import EVENTS_FILE

    if not (directory / EVENTS_FILE).exists():
        return
    try:
        console.print(f"its report is {write_report(directory)}")
    except Exception as error:  # noqa: BLE001 - how training ended is what the command must tell
        kind = type(error).__name__
        console.print(f"the report could not be written: {kind}: {error}")
        console.print(f"what the run recorded is whole: minigpt report {directory} tries again")


def _say_how_it_ended(outcome: "Outcome", console: "Console") -> None:
    result, run = outcome.result, outcome.directory.path
    reached = "the target loss" if result.reason == "target_loss" else "the last step"
    val = "" if result.val_loss is None else f"; validation loss {result.val_loss:.4f}"
    console.print(
        f"\nfinished at step {result.progress.step} ({reached}) after "
        f"{result.progress.elapsed_seconds:.0f} s{val}\n"
        f"the run is in {run}\n\n"
        "what next:\n"
        f"  minigpt sample {run} --prompt 'Once upon a time'\n"
        f"  minigpt train --run.name {run.name} --train.steps {2 * result.progress.step}   "
        "(train longer, with the same options)\n"
        "  minigpt train --data.path YOUR_TEXT.txt --run.name mine\n"
        f"  tensorboard --logdir {run / 'tensorboard'}",
    )
