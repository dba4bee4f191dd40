"""``minigpt eval``."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from tyro.conf import Positional

from minigpt.config import ParallelConfig
from minigpt.config_rules import at_least

if TYPE_CHECKING:
    from rich.table import Table

    from minigpt.train.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments:
    """Loss, perplexity and bits per byte of a run's newest checkpoint on any UTF-8 text.

    The text is read as in training: <|endoftext|> separates stories. For a run with data.layout
    packed it is one stream, with end-of-text before the first story and after every story; for a
    padded run each story is a stream of its own, with end-of-text after it. Every token but the
    first of a stream is predicted exactly once, end-of-text included; the first tokens of padded
    stories are not counted (their bytes are), and the result says how many they are. A window holds
    at most seq_length inputs, windows start every --stride tokens, and only those targets of a
    window count that the window before did not have: each token has at least seq_length - stride +
    1 tokens of context, except near the beginning of its stream. Bits per byte are all nats, those
    of end-of-text included, over ln 2 and the UTF-8 bytes of the text without its separators.
    """

    run: Positional[Path]
    """The run directory, for example runs/mini."""
    data: str
    """A UTF-8 text file, a folder of them or a glob in quotes."""
    stride: int | None = None
    """Tokens from the start of a window to that of the next, at most the model's seq_length: less
    means more context for each token, and more work; none: seq_length."""
    batch_size: int = 8
    """Windows computed at once; rounded up to what the mesh divides."""
    parallel: ParallelConfig = field(default_factory=lambda: ParallelConfig(data=1))
    json: bool = False
    """Print one JSON object instead of a table."""

    def __post_init__(self) -> None:
        """Check what does not depend on the run."""
        at_least(self, "eval", 1, "batch_size")


def run(arguments: list[str]) -> None:
    """Evaluate and print the result."""
    options = tyro.cli(EvaluateArguments, prog="minigpt eval", args=arguments)
    from minigpt.parallel.mesh import use_virtual_devices
    from minigpt.train.console import byte_progress, make_console
    from minigpt.train.evaluation import WindowConfig, evaluate_run

    use_virtual_devices(options.parallel)
    messages = make_console(stderr=True)
    found = evaluate_run(
        options.run,
        options.data,
        WindowConfig(stride=options.stride, batch_size=options.batch_size),
        options.parallel,
        notify=messages.print,
        progress=byte_progress(messages, "evaluated"),
    )
    if options.json:
        where = {"run": str(options.run), "data": options.data}
        print(json.dumps(where | asdict(found), indent=2))
        return
    console = make_console()
    console.print(_table(found, f"{options.run} at step {found.step} on {options.data}"))
    console.print(_how_counted(found))


def _table(found: "Evaluation", title: str) -> "Table":
    """The result for a person."""
    from rich.table import Table

    rows = Table("measure", title=title)
    rows.add_column("value", justify="right")
    for name, value in (
        ("stories", f"{found.num_stories:,}"),
        ("bytes", f"{found.num_bytes:,}"),
        ("tokens counted", f"{found.num_tokens:,}"),
        ("first tokens, not counted", f"{found.num_first_tokens:,}"),
        ("loss, nats per token", f"{found.loss:.4f}"),
        ("perplexity", f"{found.perplexity:,.3f}"),
        ("bits per byte", f"{found.bits_per_byte:.4f}"),
        ("window, tokens", f"{found.window_tokens:,}"),
        ("stride, tokens", f"{found.stride_tokens:,}"),
    ):
        rows.add_row(name, value)
    return rows


def _how_counted(found: "Evaluation") -> str:
    """What the numbers mean."""
    streams = {
        "packed": "the text is one stream, with end-of-text before the first story and after every "
        "story; every token after the first end-of-text counts once",
        "padded": "each story is a stream of its own, with end-of-text after it; every token but "
        f"the first of each story ({found.num_first_tokens:,} in all, whose bytes are counted) "
        "counts once",
    }[found.layout]
    context = found.window_tokens - found.stride_tokens + 1
    return (
        f"{found.layout}: {streams}, predicted from at least {context:,} tokens before it in its "
        "stream, or from all there are\n"
        "bits per byte: all nats, those of end-of-text included, over ln 2 and the bytes of the "
        "stories without separators"
    )
