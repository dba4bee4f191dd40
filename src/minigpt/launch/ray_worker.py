"""What a Ray Train worker runs, and its line to the terminal of the user."""

import faulthandler
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import jax
import ray
import ray.train
from ray.train import Checkpoint, CheckpointUploadMode

from minigpt.config import Config
from minigpt.data.batches import BatchReader, BatchSource
from minigpt.data.ray_source import RaySource, Shard
from minigpt.data.store import TokenStore
from minigpt.errors import ConfigError, DataError, InterruptedRunError, MiniGPTError, NonFiniteError
from minigpt.launch.training import Surroundings, train_in_process
from minigpt.train.loop import FitResult
from minigpt.train.record import Record
from minigpt.train.signals import StopSignals

_POLL_SECONDS = 0.5

AGREED_ERRORS = (ConfigError, DataError, NonFiniteError, InterruptedRunError)
"""Errors that all workers raise together, and that another attempt would raise again."""


class Terminal:
    """An actor on the driver's node: carries what is to be shown there, and signals back."""

    def __init__(self) -> None:
        """Nothing to show yet."""
        self._events: list[tuple[str, Any]] = []
        self._signal = 0

    def tell(self, kind: str, what: Any) -> None:  # noqa: ANN401 - depends on kind
        """Of a worker: to "say" a text, to "start" at a step, a "record", or "samples".

        Of the controller: what "failed".
        """
        self._events.append((kind, what))

    def take(self) -> list[tuple[str, Any]]:
        """Of the driver: what was told since."""
        events, self._events = self._events, []
        return events

    def stop(self, signal_number: int) -> None:
        """Of the driver: the signal it received."""
        self._signal = signal_number

    def received(self) -> int:
        """Of a worker: the driver's signal, or 0."""
        return self._signal


class TerminalSink:
    """Shows records and samples on the driver's terminal."""

    def __init__(self, terminal: Any, start_step: int) -> None:  # noqa: ANN401 - an actor handle
        """Of a run that starts, or starts again, at a step."""
        self._terminal = terminal
        terminal.tell.remote("start", start_step)

    def write(self, record: Record) -> None:
        """Send a record."""
        self._terminal.tell.remote("record", record)

    def write_samples(self, step: int, samples: Sequence[tuple[str, str]]) -> None:
        """Send samples."""
        self._terminal.tell.remote("samples", (step, samples))

    def close(self) -> None:
        """Nothing to close."""


class Reporter:
    """Reports checkpoints with the newest metrics to Ray Train; all workers take part."""

    def __init__(self) -> None:
        """No metrics yet."""
        self._known: dict[int, dict[str, float]] = {}  # after a step, the newest of each metric

    def write(self, record: Record) -> None:
        """Remember the newest value of each metric."""
        values = {name: value for name, value in asdict(record).items() if value is not None}
        del values["split"]
        if record.split == "val":
            values = {"val_loss": record.loss}
        before = next(reversed(self._known.values()), {})
        self._known[record.step] = before | values

    def write_samples(self, step: int, samples: Sequence[tuple[str, str]]) -> None:
        """Samples are not metrics."""

    def close(self) -> None:
        """Nothing to close."""

    def saved(self, step: int, directory: Path) -> None:
        """Report a checkpoint that is on disk, where it is, with the metrics of its step."""
        until = [known for known in self._known if known <= step]
        metrics = self._known[until[-1]] if until else {}
        self._known = {known: m for known, m in self._known.items() if known > step}
        self._known = {step: metrics} | self._known
        ray.train.report(
            {**metrics, "step": step},
            checkpoint=Checkpoint.from_directory(str(directory)),
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """What the driver hands to each worker."""

    config: Config
    store_directory: Path
    terminal: Any
    launched: float
    """When the driver began, in seconds since 1970."""


def train_worker(task: dict[str, Any]) -> FitResult | MiniGPTError:
    """Train as one worker of a group; errors that all raise are returned, not tried again.

    Args:
        task: the fields of a ``WorkerTask``.
    """
    return _train(WorkerTask(**task))


def _train(task: WorkerTask) -> FitResult | MiniGPTError:
    signals = StopSignals()
    reporter = Reporter()
    leads = jax.process_index() == 0
    watchdog = Watchdog(task.config.cluster.hang_seconds)
    watchdog.beat()
    if leads:
        threading.Thread(target=_follow_driver, args=(task.terminal, signals), daemon=True).start()

    def say(text: str) -> None:
        if leads:
            task.terminal.tell.remote("say", text)

    def make_source(reader: BatchReader) -> BatchSource:
        assert reader.held is not None
        return RaySource(cast("Shard", ray.train.get_dataset_shard("train")), reader.held)

    surroundings = Surroundings(
        make_source=make_source,
        signals=signals,
        say=say,
        views=lambda start_step: [TerminalSink(task.terminal, start_step)],
        launcher="ray",
        launched=task.launched,
        reporter=reporter,
        beat=watchdog.beat,
    )
    try:
        return train_in_process(task.config, TokenStore(task.store_directory), surroundings)
    except AGREED_ERRORS as error:
        return error
    finally:
        watchdog.stop()


def _follow_driver(terminal: Any, signals: StopSignals) -> None:  # noqa: ANN401 - an actor handle
    """Take over the signal that the driver received; the first worker's agreement spreads it."""
    while signals.received is None:
        time.sleep(_POLL_SECONDS)
        signals.received = ray.get(terminal.received.remote()) or None


class Watchdog:
    """Ends this process when it has made no progress for too long, so that the group restarts.

    A dead or frozen process is found by the runtime's heartbeats; this finds one whose heart
    beats while it waits for ever, for a peer that took another way or for data.
    """

    def __init__(self, seconds: float) -> None:
        """Allow so much time between two beats; 0: any time."""
        self._seconds = seconds

    def beat(self) -> None:
        """There was progress."""
        if self._seconds > 0:
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=2)

    def stop(self) -> None:
        """Nothing more is waited for."""
        faulthandler.cancel_dump_traceback_later()
