"""What a run reports about itself, and where it goes.

``metrics.jsonl`` and ``samples.jsonl`` are cut back to the checkpoint when a run continues from
it, so that every step stands in them once.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import tensorboardX

from minigpt.train.record import Record


@runtime_checkable
class Sink(Protocol):
    """Somewhere records and samples go."""

    def write(self, record: Record) -> None:
        """Take a record."""
        ...

    def write_samples(self, step: int, samples: Sequence[tuple[str, str]]) -> None:
        """Take (prompt, text) pairs sampled after ``step``."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


class JsonlSink:
    """``metrics.jsonl`` and ``samples.jsonl``, a flushed line for each object."""

    def __init__(self, directory: Path, *, start_step: int) -> None:
        """Open for appending after dropping lines beyond ``start_step``."""
        self._metrics = _open_at(directory / "metrics.jsonl", start_step)
        self._samples = _open_at(directory / "samples.jsonl", start_step)

    def write(self, record: Record) -> None:
        """Append the fields that are set (``mfu`` of train records always, null if unknown)."""
        fields = {
            name: value
            for name, value in asdict(record).items()
            if value is not None or (name == "mfu" and record.split == "train")
        }
        _write_line(self._metrics, fields)

    def write_samples(self, step: int, samples: Sequence[tuple[str, str]]) -> None:
        """Append one line for each sample."""
        for prompt, text in samples:
            _write_line(self._samples, {"step": step, "prompt": prompt, "text": text})

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        self._samples.close()


class TensorBoardSink:
    """Scalars and samples for TensorBoard."""

    _TAGS = ("learning_rate", "grad_norm", "tokens_per_second", "mfu", "step_seconds")

    def __init__(self, directory: Path, *, start_step: int) -> None:
        """Write events to ``directory``; events beyond ``start_step`` are purged on display."""
        purge = start_step + 1 if start_step else None
        self._writer = tensorboardX.SummaryWriter(str(directory), purge_step=purge)

    def write(self, record: Record) -> None:
        """One scalar for each field that is set."""
        self._writer.add_scalar(f"loss/{record.split}", record.loss, record.step)
        for tag in self._TAGS:
            if (value := getattr(record, tag)) is not None:
                self._writer.add_scalar(f"train/{tag}", value, record.step)

    def write_samples(self, step: int, samples: Sequence[tuple[str, str]]) -> None:
        """The texts as one Markdown entry."""
        text = "\n\n".join(f"**{prompt}**{text}" for prompt, text in samples)
        self._writer.add_text("samples", text, step)

    def close(self) -> None:
        """Flush the events."""
        self._writer.close()


@dataclass
class StepTimer:
    """Mean times since the last record, from spans that are measured one by one."""

    steps: int = 0
    tokens: int = 0
    step_seconds: float = 0.0
    data_seconds: float = 0.0

    def add(self, *, seconds: float, waited: float, tokens: int) -> None:
        """Count a step."""
        self.steps += 1
        self.tokens += tokens
        self.step_seconds += seconds
        self.data_seconds += waited

    def rates(self, flops_per_token: int, peak_flops: float | None) -> dict[str, float | None]:
        """The timing fields of a record."""
        per_second = self.tokens / self.step_seconds
        return {
            "tokens_per_second": per_second,
            "mfu": per_second * flops_per_token / peak_flops if peak_flops else None,
            "step_seconds": self.step_seconds / self.steps,
            "data_seconds": self.data_seconds / self.steps,
        }


class Stopwatch:
    """Time since the last lap."""

    def __init__(self) -> None:
        """Start now."""
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap, and start the next."""
        now = time.perf_counter()
        self._last, seconds = now, now - self._last
        return seconds


def _open_at(path: Path, start_step: int) -> IO[str]:
    """Open for appending with only the whole lines up to a step kept."""
    kept: list[bytes] = []
    if path.exists():
        # A killed process may leave a last line that ends anywhere, within a character too.
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                step = json.loads(line)["step"]
            except (ValueError, KeyError):
                continue
            if step <= start_step:
                kept.append(line.rstrip(b"\n") + b"\n")
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(b"".join(kept))
    os.replace(temporary, path)
    return path.open("a", encoding="utf-8")


def _write_line(stream: IO[str], fields: dict[str, Any]) -> None:
    stream.write(json.dumps(fields, ensure_ascii=False) + "\n")
    stream.flush()
