"""What the processes of a test's runtime run; of an importable module, as they are new ones."""

import dataclasses
import os
import signal
import time

import jax
import numpy as np
from tiny import with_fields

from minigpt.data.build import open_or_build
from minigpt.data.grain_source import GrainSource
from minigpt.errors import ConfigError
from minigpt.launch import training
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
            make_source=source,
            signals=signals,
            say=lambda text: None,
            views=lambda step: [],
            launcher="local",
            launched=time.time(),
        )
        return train_in_process(config, store, surroundings)


class DealtRows(GrainSource):
    """Hands each process other rows, which is right where all parallelism is of data."""

    def __init__(self, reader):
        count, rank = len(reader.held), jax.process_index()
        dealt = (rank * count + np.arange(count)) % reader.batch_size
        super().__init__(dataclasses.replace(reader, held=tuple(dealt.tolist())))


def train_on_dealt_rows(config, check):
    """Rows dealt by process instead of by mesh; ``check`` off: nobody compares peers."""
    if not check:
        training._check_peers = lambda layout, batch: None
    return train(config, DealtRows)


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
