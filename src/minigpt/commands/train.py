"""``minigpt train``."""

import os
from typing import TYPE_CHECKING

from minigpt.commands.options import parse_config

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.launch.training import Outcome


def run(arguments: list[str]) -> None:
    """Train, then say how it ended and what to do next."""
    config = parse_config(arguments, prog="minigpt train", description="Train a GPT.")
    from minigpt.train.console import make_console

    console = make_console()
    if config.cluster.num_workers > 0:
        # Read when Ray is imported: else `uv run` gives each worker an environment of its own.
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        from minigpt.launch.ray import train
    else:
        from minigpt.launch.local import train
    _say_how_it_ended(train(config, console), console)


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
