"""Charts as SVG: text and colours are of the page around it, so that it can be light or dark."""

import json
import math
from collections.abc import Sequence
from html import escape

from minigpt.report.charts import Chart, Curve
from minigpt.report.text import count

_WIDTH, _HEIGHT = 480, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 26, 38


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from below ``low`` to above ``high``, about ``most`` of them."""
    if high <= low:  # a flat curve
        low, high = low - (abs(low) / 10 or 1), high + (abs(high) / 10 or 1)
    rough = (high - low) / most
    power = 10 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def svg(chart: Chart) -> str:
    """The chart as an ``<svg>`` element; a note in its place where there is nothing to draw."""
    curves = [curve for curve in chart.curves if curve.points]
    if not curves:
        return f'<p class="empty">{escape(chart.title)}: nothing was recorded</p>'
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    frame = _Frame(_x_range(xs), ticks(min(ys), max(ys), 5))
    label = f"{chart.title}: {chart.y_label} against {chart.x_label}"
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(label)}" data-curves="{escape(_data(curves, frame))}" '
        f'data-x="{escape(chart.x_label)}">',
        *frame.grid(),
        *(frame.mark(x) for x in chart.marks),
        *(frame.curve(curve) for curve in curves),
        _legend(curves),
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 4}" '
        f'text-anchor="middle">{escape(chart.x_label)}</text>',
        '<g class="hover"></g></svg>',
    ]
    return "".join(parts)


def _x_range(xs: Sequence[float]) -> tuple[float, float]:
    low, high = min(xs), max(xs)
    low = 0.0 if 0 <= low < high / 2 else low
    return (low, high) if high > low else (low - 0.5, high + 0.5)


class _Frame:
    """From the values of a chart to places in its picture."""

    def __init__(self, x_range: tuple[float, float], y_ticks: Sequence[float]) -> None:
        self._x_low, self._x_high = x_range
        self._y_ticks = y_ticks
        self._y_low, self._y_high = y_ticks[0], y_ticks[-1]

    def x(self, value: float) -> float:
        share = (value - self._x_low) / (self._x_high - self._x_low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self._y_low) / (self._y_high - self._y_low)
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)

    def grid(self) -> list[str]:
        """Lines and numbers of the axes."""
        lines = [
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{self.y(value)}" '
            f'y2="{self.y(value)}"/><text x="{_LEFT - 6}" y="{self.y(value) + 4}" '
            f'text-anchor="end">{_number(value)}</text>'
            for value in self._y_ticks
        ]
        places = ticks(self._x_low, self._x_high, 6)
        return lines + [
            f'<text x="{self.x(value)}" y="{_HEIGHT - _BOTTOM + 16}" '
            f'text-anchor="middle">{_number(value)}</text>'
            for value in places
            if self._x_low <= value <= self._x_high
        ]

    def mark(self, x: float) -> str:
        """Where the run was continued."""
        return (
            f'<line class="mark" x1="{self.x(x)}" x2="{self.x(x)}" y1="{_TOP}" '
            f'y2="{_HEIGHT - _BOTTOM}"><title>continued after step {_number(x)}</title></line>'
        )

    def curve(self, curve: Curve) -> str:
        """The line, and its dots."""
        places = [(self.x(x), self.y(y)) for x, y in curve.points]
        line = " ".join(f"{x},{y}" for x, y in places)
        dots = places if curve.dots or len(places) == 1 else []
        return f'<g class="curve c{curve.colour}"><polyline points="{line}"/>' + (
            "".join(f'<circle cx="{x}" cy="{y}" r="2.6"/>' for x, y in dots) + "</g>"
        )


def _legend(curves: Sequence[Curve]) -> str:
    if len(curves) < 2:
        return ""
    parts: list[str] = []
    x = _LEFT
    for curve in curves:
        parts.append(
            f'<g class="curve c{curve.colour}"><line x1="{x}" x2="{x + 16}" y1="11" y2="11"/></g>'
            f'<text x="{x + 21}" y="15">{escape(curve.label)}</text>'
        )
        x += 36 + 7 * len(curve.label)
    return "".join(parts)


def _data(curves: Sequence[Curve], frame: _Frame) -> str:
    """For the script that shows values under the pointer: x, y, and both as text."""
    return json.dumps(
        [
            {
                "label": curve.label,
                "points": [
                    [frame.x(x), frame.y(y), _number(x), f"{y:.4g}"] for x, y in curve.points
                ],
            }
            for curve in curves
        ],
        separators=(",", ":"),
    )


def _number(value: float) -> str:
    """Of an axis: short, and the same digits that a person would write."""
    if value and (abs(value) < 1e-3):
        return f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e")
    if abs(value) >= 1e4:
        return count(value).replace(".0 ", " ")
    return f"{value:.6g}"
