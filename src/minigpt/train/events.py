"""``events.jsonl``: what a run spent its time on, attempt by attempt.

A line for each object, with ``time`` (seconds since 1970, UTC), ``kind`` and the fields of that
kind. The first process writes it, restarts append to it, and nothing is ever cut back: the steps
that a restart does again stay in it, which is how their time is known. docs/runs.md has the kinds.
"""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from minigpt.errors import InterruptedRunError, NonFiniteError

EVENTS_FILE = "events.jsonl"


class EventLog:
    """One attempt to train; a context manager that also writes how the attempt ended."""

    def __init__(self, directory: Path | None, *, launcher: str, launched: float) -> None:
        """Begin an attempt.

        Args:
            directory: of the run; None writes nothing, as in all processes but the first.
            launcher: "local" or "ray".
            launched: when the user's command began, in seconds since 1970; attempts of one launch
                have the same.
        """
        self._path = None if directory is None else directory / EVENTS_FILE
        self._reason = "finished"
        self.write("start", launcher=launcher, launched=launched)

    def write(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - what JSON can hold
        """Append an event that happens, or ends, now."""
        if self._path is None:
            return
        line = json.dumps({"time": time.time(), "kind": kind, **fields}, ensure_ascii=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as stream:  # of a killed process: a line without its end
            cut = stream.tell() > 0 and not _ends_with_newline(stream)
            stream.write((b"\n" if cut else b"") + line.encode() + b"\n")

    def ends_with(self, reason: str) -> None:
        """Why the attempt will have ended, if no error comes: "steps" or "target_loss"."""
        self._reason = reason

    def __enter__(self) -> "EventLog":
        """The attempt is already begun."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the end."""
        del kind, trace
        self.write("end", reason=self._reason if error is None else _reason(error))


def _ends_with_newline(stream: Any) -> bool:  # noqa: ANN401 - a binary file
    stream.seek(-1, 2)
    return stream.read(1) == b"\n"


def _reason(error: BaseException) -> str:
    if isinstance(error, InterruptedRunError):
        return "signal"
    return "non_finite" if isinstance(error, NonFiniteError) else type(error).__name__
