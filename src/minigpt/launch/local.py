"""Training on one machine, in this process."""

from dataclasses import dataclass

from rich.console import Console

from minigpt.config import Config
from minigpt.data.build import open_or_build
from minigpt.data.grain_source import GrainSource
from minigpt.data.store import TokenStore
from minigpt.launch.training import train_in_process
from minigpt.parallel.mesh import use_virtual_devices
from minigpt.train.console import byte_progress
from minigpt.train.loop import FitResult
from minigpt.train.run_directory import RunDirectory
from minigpt.train.signals import StopSignals


@dataclass(frozen=True)
class Outcome:
    """A finished run and how it ended."""

    directory: RunDirectory
    result: FitResult


def train(config: Config, console: Console) -> Outcome:
    """Prepare the data, build or restore the state, and train.

    Raises:
        MiniGPTError: the input is wrong, training became non-finite, a checkpoint could not be
            written, or a signal came; see ``minigpt.errors``.
    """
    directory = RunDirectory.of(config)
    use_virtual_devices(config.parallel)
    with StopSignals() as signals:
        store, reused = open_or_build(config, byte_progress(console, "tokenising"))
        describe_data(store, console, reused=reused)
        directory.check_resume(config, store.corpus)
        return Outcome(directory, train_in_process(config, store, GrainSource, signals, console))


def describe_data(store: TokenStore, console: Console, *, reused: bool) -> None:
    """Say what is trained on, and what of the text was left out."""
    counts, splits = store.counts, store.splits
    console.print(
        f"data: {counts['num_stories']:,} stories, {splits['train'].num_tokens:,} training tokens "
        f"in {splits['train'].num_rows:,} rows, {splits['val'].num_tokens:,} validation tokens "
        f"in {splits['val'].num_rows:,} rows ({'reused' if reused else 'stored in'} "
        f"{store.directory})",
    )
    for what, number in (
        ("empty stories were dropped", counts["num_empty"]),
        ("characters were not UTF-8 and were replaced", counts["num_replaced"]),
        (
            "stories were longer than a row and cut off",
            splits["train"].num_truncated_stories + splits["val"].num_truncated_stories,
        ),
    ):
        if number:
            console.print(f"data: {number:,} {what}")
