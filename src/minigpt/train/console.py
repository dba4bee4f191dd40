"""What a person sees of a run: a progress bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from minigpt.train.record import Record


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: no markup, no emoji codes, lines left whole."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


class ConsoleSink:
    """Prints records and samples; on a terminal, metrics of steps update one bar."""

    def __init__(self, console: Console, *, steps: int, start_step: int) -> None:
        """Start the bar where the run starts."""
        self._console, self._steps = console, steps
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._eta = _Eta(start_step)
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[metrics]}"),
                TextColumn("ETA"),
                TimeRemainingColumn(compact=True),
                console=console,
            )
            self._task = self._bar.add_task("", total=steps, completed=start_step, metrics="")
            self._bar.start()

    def write(self, record: Record) -> None:
        """Show a record."""
        if record.split == "val":
            self._console.print(f"step {record.step:>5}  validation loss {record.loss:.4f}")
        elif self._bar is not None:
            self._bar.update(self._task, completed=record.step, metrics=_summary(record))
        else:
            eta = self._eta.remaining(record.step, self._steps, record.elapsed_seconds or 0.0)
            where = f"step {record.step:>5}/{self._steps}"
            self._console.print(f"{where}  {_summary(record)}  ETA {eta}")

    def write_samples(self, step: int, samples: Sequence[tuple[str, str]]) -> None:
        """Print each sample, prompt in bold."""
        for prompt, text in samples:
            indented = [part.replace("\n", "\n    ") for part in (prompt, text)]
            shown = Text.assemble((indented[0], "bold"), indented[1])
            self._console.print(Text(f"sample after step {step}:\n    ").append_text(shown))

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


class _Eta:
    """Remaining time from the pace since the first record of this process."""

    def __init__(self, start_step: int) -> None:
        self._first = (start_step, None)

    def remaining(self, step: int, steps: int, elapsed: float) -> str:
        first_step, first_elapsed = self._first
        if first_elapsed is None:
            self._first = (step, elapsed)
            return "-"
        seconds = (elapsed - first_elapsed) / max(1, step - first_step) * (steps - step)
        return format_seconds(seconds)


def _summary(record: Record) -> str:
    parts = [f"loss {record.loss:.4f}"]
    if record.learning_rate is not None:
        parts.append(f"lr {record.learning_rate:.2e}")
    if record.grad_norm is not None:
        parts.append(f"grad {record.grad_norm:.2f}")
    if record.tokens_per_second is not None:
        parts.append(f"{record.tokens_per_second:,.0f} tok/s")
    parts.append("MFU n/a" if record.mfu is None else f"MFU {100 * record.mfu:.1f} %")
    return "  ".join(parts)


def format_seconds(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def byte_progress(console: Console, label: str) -> Callable[[int, int], None]:
    """A progress callback ``(done, total)`` in bytes: a line that is rewritten on a terminal,
    a line for each tenth elsewhere."""
    shown = -1

    def show(done: int, total: int) -> None:
        nonlocal shown
        percent = 100 if total == 0 else 100 * done // total
        if percent == shown or (not console.is_terminal and percent // 10 == shown // 10):
            return
        shown = percent
        text = f"{label}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB ({percent} %)"
        end = "\n" if percent == 100 or not console.is_terminal else "\r"
        console.print(text, end=end, highlight=False)

    return show
