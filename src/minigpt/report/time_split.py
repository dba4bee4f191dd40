"""What the time of a run went to, and how much of it had passed at each record."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minigpt.report.run import Attempt, Event, Run
from minigpt.train.record import Record

USES = {
    "startup": "start-up",
    "compile": "compiling",
    "step": "steps",
    "data": "waiting for data",
    "evaluation": "evaluation",
    "samples": "samples",
    "checkpoint": "checkpoints",
    "lost": "lost to restarts",
    "other": "other",
}
"""What time goes to, with the names that people read."""

_BEFORE_STEPS = {"startup", "first_batch", "compile"}


@dataclass(frozen=True)
class TimeSplit:
    """Seconds of each of ``USES``; they add up to ``elapsed``."""

    seconds: Mapping[str, float]
    elapsed: float
    """Seconds of all attempts, from the user's command to the last sign of life."""
    notes: tuple[str, ...] = ()
    """What is not known."""


def time_split(run: Run) -> TimeSplit:
    """What the time of a run went to.

    Lost to restarts is: whatever an attempt did after the step from which a later one continued,
    and everything before the first step of each attempt but the first.
    """
    if not run.attempts:
        return _without_events(run)
    seconds = dict.fromkeys(USES, 0.0)
    first = next((place for place, attempt in enumerate(run.attempts) if attempt.ready), 0)
    for place, attempt in enumerate(run.attempts):
        later = [after.ready.step for after in run.attempts[place + 1 :] if after.ready]
        _add(seconds, attempt, continued_from=min(later, default=None), is_first=place == first)
    elapsed = sum(attempt.seconds for attempt in run.attempts)
    seconds["other"] = elapsed - sum(seconds.values())
    ready = run.attempts[first].ready
    notes = (
        (f"the time before step {ready.step} is not known: there were no events then",)
        if ready is not None and ready.step > 0
        else ()
    )
    return TimeSplit(seconds, elapsed, notes)


def _add(
    seconds: dict[str, float], attempt: Attempt, *, continued_from: int | None, is_first: bool
) -> None:
    """Add the time of one attempt; ``continued_from`` is of a later one, if there is one."""
    ready_time = attempt.ready.time if attempt.ready else attempt.end
    spent = [("startup", 0, ready_time - attempt.begin)]
    for event in attempt.events:
        spent += [(use, event.step, amount) for use, amount in _uses(event)]
    for use, step, amount in spent:
        if use in _BEFORE_STEPS:
            lost = not is_first
        else:
            lost = continued_from is not None and (step > continued_from or continued_from == 0)
        seconds["lost" if lost else "data" if use == "first_batch" else use] += amount


def _uses(event: Event) -> Iterable[tuple[str, float]]:
    if event.kind == "steps":
        waited = event.number("data_seconds")
        return [("step", event.number("step_seconds") - waited), ("data", waited)]
    known = event.kind in USES or event.kind == "first_batch"
    return [(event.kind, event.number("seconds"))] if known else []


def _without_events(run: Run) -> TimeSplit:
    """What records tell: steps and waiting; evaluation and the like are in the rest."""
    seconds = dict.fromkeys(USES, 0.0)
    step = 0
    for record in run.train_records:
        waited = record.data_seconds or 0.0
        seconds["step"] += (record.step - step) * ((record.step_seconds or 0.0) - waited)
        seconds["data"] += (record.step - step) * waited
        step = record.step
    elapsed = max((record.elapsed_seconds or 0.0 for record in run.records), default=0.0)
    seconds["other"] = elapsed - seconds["step"] - seconds["data"]
    note = (
        "the run has no events.jsonl: start-up, restarts and steps done again are not known, and "
        "compiling, evaluation, samples and checkpoints are in 'other'"
    )
    return TimeSplit(seconds, elapsed, (note,))


class Clock:
    """Seconds that a run had taken, restarts and start-up included, when a record was written.

    Where events are missing, its records' own time counts: that of the training loop alone.
    """

    def __init__(self, run: Run) -> None:
        """Look up when each record was written."""
        self._times: dict[tuple[str, int], float] = {}
        passed = 0.0
        for attempt in run.attempts:
            for event in attempt.events:
                if event.kind in ("steps", "evaluation"):
                    split = "train" if event.kind == "steps" else "val"
                    self._times[split, event.step] = passed + event.time - attempt.begin
            passed += attempt.seconds
        self.knows_all = all((record.split, record.step) in self._times for record in run.records)
        """Whether start-up and restarts are in every time."""

    def seconds(self, record: Record) -> float:
        """Seconds from the user's first command to the record."""
        if self.knows_all:
            return self._times[record.split, record.step]
        return record.elapsed_seconds or 0.0
