"""Charts as PNG pictures."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minigpt.errors import ConfigError
from minigpt.report.charts import Chart

_DPI = 130
_COLOURS = ("#0b63b0", "#c25700", "#1d7f4e", "#8a3fa8", "#b58900", "#c62f2f", "#4a5760", "#00828a")
_LINES = ("-", "--", ":", "-.")  # curves that lie on each other are both seen


def save_each(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """A picture for each chart that has something to show, ``FOLDER/KEY.png``.

    Raises:
        ConfigError: they cannot be written.
    """
    saved: list[Path] = []
    for chart in charts:
        if any(curve.points for curve in chart.curves):
            saved.append(folder / f"{chart.key}.png")
            save_together([chart], saved[-1])
    return saved


def save_together(charts: Sequence[Chart], file: Path) -> None:
    """One picture of all charts, two in a row.

    Raises:
        ConfigError: it cannot be written.
    """
    columns = min(2, len(charts))
    rows = math.ceil(len(charts) / columns)
    figure = Figure(figsize=(6.2 * columns, 3.9 * rows), dpi=_DPI, layout="constrained")
    for number, chart in enumerate(charts, 1):
        _draw(figure.add_subplot(rows, columns, number), chart)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(buffer.getvalue())
    except OSError as error:
        raise ConfigError(
            f"the picture {str(file)!r} cannot be written ({error.strerror}): give a place that "
            "you may write to, for example compare.png"
        ) from error


def _draw(axes: Axes, chart: Chart) -> None:
    curves = [curve for curve in chart.curves if curve.points]
    for curve in curves:
        xs, ys = zip(*curve.points, strict=True)
        axes.plot(
            xs,
            ys,
            color=_COLOURS[curve.colour % len(_COLOURS)],
            linestyle=_LINES[curve.colour % len(_LINES)],
            linewidth=1.4,
            marker="o" if curve.dots or len(curve.points) == 1 else None,
            markersize=3,
            label=_plain(curve.label),
        )
    for place in chart.marks:
        axes.axvline(place, color="#c62f2f", linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_title(_plain(chart.title), fontsize=11, loc="left")
    axes.set_xlabel(_plain(chart.x_label), fontsize=9)
    axes.set_ylabel(_plain(chart.y_label), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, axis="y", color="#dfe3e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1:
        axes.legend(fontsize=8, frameon=False)
    if not curves:
        axes.text(0.5, 0.5, "nothing to show", ha="center", transform=axes.transAxes, fontsize=9)


def _plain(text: str) -> str:
    """Text as it is: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")
