"""Runs side by side: which reaches a loss sooner, and for less money."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Literal

from minigpt.config_file import flatten
from minigpt.errors import ConfigError
from minigpt.report.charts import Chart, Curve, thin, time_unit
from minigpt.report.run import Run, Sample
from minigpt.report.time_split import Clock, TimeSplit, time_split
from minigpt.train.record import Record

_SMOOTHED_RECORDS = 10
_NOT_COMPARED = {"run.name", "run.directory", "run.resume", "data.path"}


@dataclass(frozen=True)
class Reached:
    """The first record at which a run had the loss."""

    step: int
    tokens: int
    seconds: float
    dollars: float | None


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the runs that are compared."""

    name: str
    run: Run
    price_per_hour: float | None
    """US dollars for all its devices, if known."""
    split: TimeSplit
    clock: Clock
    losses: Sequence[tuple[Record, float]]
    """Records of the compared split, with what counts as their loss."""
    reached: Reached | None
    """None: it never had the loss."""

    def dollars(self, seconds: float) -> float | None:
        """What so much of its time costs."""
        return None if self.price_per_hour is None else seconds / 3600 * self.price_per_hour

    @property
    def tokens_per_second(self) -> float | None:
        """Median over the records, evaluation and the like left out."""
        return _median(record.tokens_per_second for record in self.run.train_records)

    @property
    def mfu(self) -> float | None:
        """Median over the records."""
        return _median(record.mfu for record in self.run.train_records)

    @property
    def last_samples(self) -> list[Sample]:
        """Those of the last step that has some."""
        last = max((sample.step for sample in self.run.samples), default=None)
        return [sample for sample in self.run.samples if sample.step == last]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The runs, and what they are measured by."""

    loss: float
    loss_is_given: bool
    """Else it is the lowest that all have reached."""
    split: Literal["train", "val"]
    sides: Sequence[Side]
    warnings: Sequence[str]
    """Why some of it is not, or not quite, comparable."""

    @property
    def measure(self) -> str:
        """Which loss is compared, in words."""
        if self.split == "val":
            return "validation loss"
        return f"training loss (mean of the last {_SMOOTHED_RECORDS} records)"


def compare(
    runs: Sequence[Run], *, loss: float | None, prices: Sequence[float], anyway: bool
) -> Comparison:
    """Compare runs by what it took to reach a loss.

    Args:
        runs: at least two.
        loss: to reach; None: the lowest that all have reached.
        prices: US dollars per hour for all devices of a run: none, one for all, or one for each.
        anyway: runs of different data are compared with a warning.

    Raises:
        ConfigError: losses of these runs cannot be compared, or the prices do not fit.
    """
    if len(runs) < 2:
        raise ConfigError(
            f"minigpt compare needs two or more runs, got {len(runs)}: for example "
            "minigpt compare runs/one runs/two"
        )
    if differing := _different_data(runs):
        if not anyway:
            listed = "".join(f"\n  {line}" for line in differing)
            raise ConfigError(
                f"losses of these runs cannot be compared; these differ:{listed}\n"
                "compare runs of the same text and tokenizer, or use --anyway to see them with "
                "a warning"
            )
        differing = [f"losses are not comparable: {line}" for line in differing]
    split = "val" if all(run.val_records for run in runs) else "train"
    curves = [_losses(run, split) for run in runs]
    goal = max(min(value for _, value in curve) for curve in curves) if loss is None else loss
    sides = [
        _side(run, name, price, curve, goal)
        for run, name, price, curve in zip(
            runs, _names(runs), _prices(prices, len(runs)), curves, strict=True
        )
    ]
    return Comparison(
        loss=goal,
        loss_is_given=loss is not None,
        split=split,
        sides=sides,
        warnings=[*differing, *_warnings(sides)],
    )


def _side(
    run: Run,
    name: str,
    price: float | None,
    losses: Sequence[tuple[Record, float]],
    goal: float,
) -> Side:
    clock = Clock(run)
    first = next((record for record, value in losses if value <= goal), None)
    reached = None
    if first is not None:
        seconds = clock.seconds(first)
        dollars = None if price is None else seconds / 3600 * price
        reached = Reached(first.step, first.tokens or 0, seconds, dollars)
    return Side(
        name=name,
        run=run,
        price_per_hour=price,
        split=time_split(run),
        clock=clock,
        losses=losses,
        reached=reached,
    )


def _losses(run: Run, split: Literal["train", "val"]) -> list[tuple[Record, float]]:
    """Validation losses as they are; training losses, which scatter, as means over the last."""
    if split == "val":
        return [(record, record.loss) for record in run.val_records]
    records = run.train_records
    if not records:
        raise ConfigError(
            f"{str(run.path)!r} has recorded no loss yet: compare it when it has, or leave it out"
        )
    return [
        (record, fmean(r.loss for r in records[max(0, end - _SMOOTHED_RECORDS) : end]))
        for end, record in enumerate(records, 1)
    ]


def _prices(prices: Sequence[float], num_runs: int) -> list[float | None]:
    for price in prices:
        if not 0 <= price < math.inf:
            raise ConfigError(f"--price-per-hour must be at least 0 and finite, got {price}")
    if len(prices) in (0, 1):
        return [prices[0] if prices else None] * num_runs
    if len(prices) != num_runs:
        raise ConfigError(
            f"--price-per-hour must be given once for all runs or once for each, got "
            f"{len(prices)} for {num_runs} runs"
        )
    return list(prices)


def _names(runs: Sequence[Run]) -> list[str]:
    """Of the directories; with their paths where two have the same."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else str(run.path)
        for run, name in zip(runs, names, strict=True)
    ]


def _different_data(runs: Sequence[Run]) -> list[str]:
    """What differs in the text that losses are measured on, or in how it is cut into tokens."""
    measures: dict[str, Callable[[Run], Any]] = {
        "data": lambda run: run.data_identity,
        "data.tokenizer": lambda run: run.config.data.tokenizer,
        "data.layout": lambda run: run.config.data.layout,
        "data.val_fraction": lambda run: run.config.data.val_fraction,
    }
    return [
        f"{name}: {_listed(runs, _describe if name == 'data' else str, measure)}"
        for name, measure in measures.items()
        if any(measure(one) != measure(other) for one, other in pairwise(runs))
    ]


def _listed(
    runs: Sequence[Run], describe: Callable[[Any], str], measure: Callable[[Run], Any]
) -> str:
    pairs = zip(_names(runs), runs, strict=True)
    return ", ".join(f"{describe(measure(run))} in {name}" for name, run in pairs)


def _describe(identity: Mapping[str, Any]) -> str:
    if "files" in identity:
        files = ", ".join(f"{name} ({digest[:8]})" for name, digest in identity["files"])
        limit = identity.get("max_stories")
        return files if limit is None else f"the first {limit} stories of {files}"
    return f"{identity.get('num_stories')} stories of the built-in corpus"


def _warnings(sides: Sequence[Side]) -> list[str]:
    found: list[str] = []
    for name in ("model.seq_length", "train.eval_rows"):
        values = [flatten(asdict(side.run.config))[name] for side in sides]
        if len(set(values)) > 1:
            shown = ", ".join(map(str, values))
            found.append(f"{name} differs ({shown}), so losses are not quite the same measure")
    for side in sides:
        if not side.clock.knows_all:
            found.append(
                f"{side.name}: times are those of the training loop alone, since some of its "
                "start-up and restarts are not on record"
            )
        found += [f"{side.name}: {note}" for note in side.split.notes]
    return found


def _median(values: Any) -> float | None:  # noqa: ANN401 - an iterable of numbers or None
    known = [value for value in values if value is not None]
    return median(known) if known else None


def differing_fields(comparison: Comparison) -> dict[str, list[Any]]:
    """Configuration fields in which the runs differ, with the value of each run."""
    configs = [flatten(asdict(side.run.config)) for side in comparison.sides]
    values = {name: [config[name] for config in configs] for name in configs[0]}
    return {
        name: listed
        for name, listed in values.items()
        if name not in _NOT_COMPARED and any(value != listed[0] for value in listed)
    }


def charts(comparison: Comparison) -> list[Chart]:
    """Loss against steps, tokens, time and, where all prices are known, money."""
    sides = comparison.sides
    longest = max(side.clock.seconds(record) for side in sides for record, _ in side.losses)
    unit, scale = time_unit(longest)
    axes: dict[str, tuple[str, Callable[[Side, Record], float]]] = {
        "steps": ("step", lambda _, record: record.step),
        "tokens": ("tokens", lambda _, record: record.tokens or 0),
        "time": (unit, lambda side, record: side.clock.seconds(record) / scale),
    }
    if all(side.price_per_hour is not None for side in sides):
        axes["money"] = (
            "US dollars",
            lambda side, record: side.dollars(side.clock.seconds(record)) or 0.0,
        )
    return [
        Chart(
            key=key,
            title=f"Loss against {key}",
            x_label=label,
            y_label=comparison.measure,
            curves=[
                Curve(
                    side.name,
                    thin([(x(side, record), value) for record, value in side.losses]),
                    number,
                    dots=len(side.losses) <= 40,
                )
                for number, side in enumerate(sides)
            ],
        )
        for key, (label, x) in axes.items()
    ]
