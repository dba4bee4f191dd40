"""Training on one machine, in this process."""

import time

from rich.console import Console

from minigpt.config import Config
from minigpt.data.build import open_or_build
from minigpt.data.grain_source import GrainSource
from minigpt.launch.training import Outcome, Surroundings, describe_data, train_in_process
from minigpt.parallel.mesh import use_virtual_devices
from minigpt.train.console import ConsoleSink, byte_progress
from minigpt.train.run_directory import RunDirectory
from minigpt.train.signals import StopSignals


def train(config: Config, console: Console) -> Outcome:
    """Prepare the data, build or restore the state, and train.

    Raises:
        MiniGPTError: the input is wrong, training became non-finite, a checkpoint could not be
            written, or a signal came; see ``minigpt.errors``.
    """
    launched = time.time()
    directory = RunDirectory.of(config)
    use_virtual_devices(config.parallel)
    with StopSignals() as signals:
        store, reused = open_or_build(config, byte_progress(console, "tokenising"))
        describe_data(store, console.print, reused=reused)
        directory.check_resume(config, store.corpus)
        surroundings = Surroundings(
            make_source=GrainSource,
            signals=signals,
            say=console.print,
            views=lambda start: [ConsoleSink(console, steps=config.train.steps, start_step=start)],
            launcher="local",
            launched=launched,
        )
        return Outcome(directory, train_in_process(config, store, surroundings))
