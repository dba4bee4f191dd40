"""Reads a run directory; a line that a killed process left unfinished is passed over."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from minigpt.config import Config
from minigpt.config_file import read_yaml
from minigpt.errors import ConfigError
from minigpt.train.events import EVENTS_FILE
from minigpt.train.record import Record
from minigpt.train.run_directory import RunDirectory


@dataclass(frozen=True)
class Sample:
    """A text sampled after a step."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class Event:
    """A line of ``events.jsonl``; docs/runs.md has the kinds and their fields."""

    time: float
    """Seconds since 1970."""
    kind: str
    fields: Mapping[str, Any]

    def number(self, name: str) -> float:
        """A field that is a number; 0 where it is missing."""
        value = self.fields.get(name)
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def step(self) -> int:
        """Steps done when it happened; 0 for kinds that have none."""
        return int(self.number("step"))


@dataclass(frozen=True)
class Attempt:
    """What happened between a start and the next one."""

    begin: float
    """When its time began to count, in seconds since 1970: with the user's command, or for an
    automatic restart at the end of the attempt before."""
    events: tuple[Event, ...]
    """In order; the first is of kind "start"."""

    @property
    def end(self) -> float:
        """When it last gave a sign of life."""
        return self.events[-1].time

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.end - self.begin

    @property
    def launcher(self) -> str:
        """What started it: "local" or "ray"."""
        return str(self.events[0].fields.get("launcher", "unknown"))

    @property
    def ready(self) -> Event | None:
        """When training could begin, with what it ran on; None if it did not come so far."""
        return next((event for event in self.events if event.kind == "ready"), None)

    @property
    def reason(self) -> str | None:
        """How it ended; None if nothing was written: it was killed, or it still runs."""
        last = self.events[-1]
        return str(last.fields.get("reason", "unknown")) if last.kind == "end" else None

    @property
    def last_step(self) -> int:
        """Steps that were done when it ended."""
        return max(event.step for event in self.events)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that a run wrote about itself."""

    path: Path
    config: Config
    data_identity: Mapping[str, Any]
    version: str
    """Of MiniGPT, when the run was last started."""
    records: tuple[Record, ...]
    samples: tuple[Sample, ...]
    attempts: tuple[Attempt, ...]
    """Empty for a run of before there were events."""

    @property
    def name(self) -> str:
        """Of its directory."""
        return self.path.name

    @cached_property
    def train_records(self) -> tuple[Record, ...]:
        """Records of training steps."""
        return tuple(record for record in self.records if record.split == "train")

    @cached_property
    def val_records(self) -> tuple[Record, ...]:
        """Records of evaluations."""
        return tuple(record for record in self.records if record.split == "val")

    @property
    def step(self) -> int:
        """The last step that was recorded."""
        return max((record.step for record in self.records), default=0)

    @property
    def tokens(self) -> int:
        """Valid targets trained on."""
        return max((record.tokens or 0 for record in self.records), default=0)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the newest attempt ran on; empty where nothing is known."""
        ready = [attempt.ready for attempt in self.attempts if attempt.ready]
        return ready[-1].fields if ready else {}

    def facts_of_all(self, name: str) -> list[Any]:
        """The values of a fact over the attempts, each once, in order."""
        values = [attempt.ready.fields.get(name) for attempt in self.attempts if attempt.ready]
        return [value for place, value in enumerate(values) if value not in values[:place]]


def read_run(path: Path) -> Run:
    """Everything in a run directory.

    Raises:
        CheckpointError: it is not a run directory.
        ConfigError: its configuration or one of its files cannot be read.
    """
    directory = RunDirectory(path)
    config, identity = directory.read_config()
    records = [_record(line) for line in _lines(path / "metrics.jsonl")]
    samples = [_sample(line) for line in _lines(path / "samples.jsonl")]
    return Run(
        path=path,
        config=config,
        data_identity=identity,
        version=str(read_yaml(directory.config_file).get("minigpt_version", "unknown")),
        records=tuple(record for record in records if record is not None),
        samples=tuple(sample for sample in samples if sample is not None),
        attempts=_attempts([_event(line) for line in _lines(path / EVENTS_FILE)]),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of one on each line; none if there is no file."""
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise ConfigError(
            f"{str(path)!r} cannot be read ({error.strerror}): check its owner and permissions"
        ) from error
    for line in content.split(b"\n"):
        try:
            value = json.loads(line)
        except ValueError:  # cut off, within a character too
            continue
        if isinstance(value, dict):
            yield cast("dict[str, Any]", value)


def _record(line: dict[str, Any]) -> Record | None:
    known = {field.name: line.get(field.name) for field in fields(Record)}
    numbers = [value for name, value in known.items() if name != "split" and value is not None]
    if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers):
        return None
    if known["split"] not in ("train", "val") or known["loss"] is None or known["step"] is None:
        return None
    return Record(**cast("Any", known))


def _sample(line: dict[str, Any]) -> Sample | None:
    step, prompt, text = (line.get(name) for name in ("step", "prompt", "text"))
    if isinstance(step, int) and isinstance(prompt, str) and isinstance(text, str):
        return Sample(step, prompt, text)
    return None


def _event(line: dict[str, Any]) -> Event | None:
    moment, kind = line.pop("time", None), line.pop("kind", None)
    if isinstance(moment, int | float) and isinstance(kind, str):
        return Event(float(moment), kind, line)
    return None


def _attempts(events: list[Event | None]) -> tuple[Attempt, ...]:
    groups: list[list[Event]] = []
    for event in events:
        if event is None:
            continue
        if event.kind == "start":
            groups.append([])
        if groups:
            groups[-1].append(event)
    attempts: list[Attempt] = []
    for group in groups:
        begin = min(group[0].number("launched") or group[0].time, group[0].time)
        if attempts and attempts[-1].end > begin:  # of the same launch: the machines waited for it
            begin = attempts[-1].end
        attempts.append(Attempt(begin, tuple(group)))
    return tuple(attempts)
