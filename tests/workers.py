"""What the processes of a test's runtime run; of an importable module, as they are new ones."""

import os
import signal

import jax
from tiny import with_fields

from minigpt.data.build import open_or_build
from minigpt.data.grain_source import GrainSource
from minigpt.errors import ConfigError
from minigpt.launch.training import Surroundings, train_in_process
from minigpt.train.signals import StopSignals


class StopAt(GrainSource):
    """Sends SIGTERM to its own process while a step's batch is asked for."""

    step = 5

    def batches(self, start, stop):
        for step, batch in enumerate(super().batches(start, stop), start):
            if step == self.step and jax.process_index() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch


def train(config, source=GrainSource):
    """Train as a process of a cluster does; the result, or the error."""
    store, _ = open_or_build(config, lambda done, total: None)
    with StopSignals() as signals:
        surroundings = Surroundings(
            make_source=source, signals=signals, say=lambda text: None, views=lambda step: []
        )
        return train_in_process(config, store, surroundings)


def train_from_own_store(config):
    """Each process but the first reads another corpus."""
    limit = 60 if jax.process_index() == 0 else 50
    return train(with_fields(config, data={"max_stories": limit}))


def train_in_own_directory(config):
    """The processes do not share a run directory."""
    if jax.process_index() == 1:
        config = with_fields(config, run={"directory": f"{config.run.directory}-other"})
    return train(config)


def fail(how):
    """End in some way, in one process of two; the other one goes on."""
    if jax.process_index() == 0:
        signal.pause()
    if how == "refusal":
        raise ConfigError("train.steps is wrong")
    if how == "error":
        raise ZeroDivisionError("a bug")
    os._exit(7)
