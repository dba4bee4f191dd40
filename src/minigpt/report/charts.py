"""The curves of a run and of several runs, as data; `svg` and `png` draw them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minigpt.report.run import Run
from minigpt.report.time_split import Clock
from minigpt.train.record import Record

_MOST_POINTS = 400


@dataclass(frozen=True)
class Curve:
    """Points that a line joins."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: int
    """Number in the palette."""
    dots: bool = False
    """Points are few and each is marked."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Axes and what is drawn in them."""

    key: str
    """A name for files."""
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    marks: Sequence[float] = field(default=())
    """Places on the x axis where the run was continued."""


def run_charts(run: Run) -> list[Chart]:
    """Loss against steps and time, throughput, learning rate, gradient norm, time of a step."""
    clock = Clock(run)
    unit, scale = time_unit(max((clock.seconds(record) for record in run.records), default=0.0))
    restarts = [a.ready.step for a in run.attempts[1:] if a.ready and a.ready.step > 0]

    def loss_against(x: Callable[[Record], float]) -> list[Curve]:
        train = _curve("training", run.train_records, x, lambda r: r.loss, 0)
        return [
            train,
            _curve("validation", run.val_records, x, lambda r: r.loss, 1, dots=True),
        ]

    def against_steps(
        key: str, title: str, y_label: str, *curves: tuple[str, Callable[[Record], float | None]]
    ) -> Chart:
        drawn = [
            _curve(label, run.train_records, _step, y, number)
            for number, (label, y) in enumerate(curves)
        ]
        return Chart(
            key=key, title=title, x_label="step", y_label=y_label, curves=drawn, marks=restarts
        )

    loss = "nats per token"
    return [
        Chart(
            key="loss",
            title="Loss",
            x_label="step",
            y_label=loss,
            curves=loss_against(_step),
            marks=restarts,
        ),
        Chart(
            key="loss-time",
            title="Loss against time",
            x_label=f"{unit} since the start" + ("" if clock.knows_all else " (of the loop)"),
            y_label=loss,
            curves=loss_against(lambda record: clock.seconds(record) / scale),
        ),
        against_steps(
            "throughput",
            "Throughput",
            "tokens per second",
            ("tokens per second", lambda record: record.tokens_per_second),
        ),
        against_steps(
            "learning-rate", "Learning rate", "per step", ("rate", lambda r: r.learning_rate)
        ),
        against_steps(
            "gradient-norm",
            "Gradient norm",
            "before clipping",
            ("norm", lambda record: record.grad_norm),
        ),
        against_steps(
            "step-time",
            "Time of a step",
            "milliseconds",
            ("whole step", lambda record: _milliseconds(record.step_seconds)),
            ("waiting for data", lambda record: _milliseconds(record.data_seconds)),
        ),
    ]


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit for an axis that goes so far, and its seconds."""
    if seconds < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 3 * 3600 else ("hours", 3600.0)


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Few enough points to draw: the lowest and the highest of each stretch, in order."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    kept: list[tuple[float, float]] = []
    stretches = _MOST_POINTS // 2
    for number in range(stretches):
        start, stop = (len(points) * (number + more) // stretches for more in (0, 1))
        places = range(start, stop)
        lowest = min(places, key=lambda place: points[place][1])
        highest = max(places, key=lambda place: points[place][1])
        kept += [points[place] for place in sorted({lowest, highest})]
    return kept


def _curve(
    label: str,
    records: Sequence[Record],
    x: Callable[[Record], float],
    y: Callable[[Record], float | None],
    colour: int,
    *,
    dots: bool = False,
) -> Curve:
    found = [(x(record), value) for record in records if (value := y(record)) is not None]
    return Curve(label, thin(found), colour, dots=dots and len(found) <= 40)


def _step(record: Record) -> float:
    return record.step


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
