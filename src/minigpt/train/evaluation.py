"""How well a run's newest checkpoint predicts any text."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax

from minigpt.config import ParallelConfig
from minigpt.config_rules import require
from minigpt.data.corpus import open_corpus
from minigpt.data.windows import TextWindows
from minigpt.errors import DataError, NonFiniteError
from minigpt.parallel.rows import global_batch
from minigpt.train.restore import RestoredRun, restore_run
from minigpt.train.step import make_eval_step

_LARGEST_LOSS = 700.0  # in nats: its perplexity is still a float64

Progress = Callable[[int, int], None]
"""Called with the bytes evaluated so far and the bytes in all."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A checkpoint's loss on a text, in which every token that has one before it counts once."""

    step: int
    """Training steps of the checkpoint."""
    layout: Literal["packed", "padded"]
    """packed: the text is one stream; padded: each story is one."""
    num_stories: int
    num_bytes: int
    """UTF-8 bytes of the stories, without end-of-text or white space around them."""
    num_tokens: int
    """Tokens predicted, the end-of-text after each story among them."""
    num_first_tokens: int
    """Tokens of stories that nothing precedes, and which are not counted."""
    loss: float
    """Nats per predicted token."""
    perplexity: float
    """``exp(loss)``."""
    bits_per_byte: float
    """All nats, those of end-of-text included, over ``ln 2`` and all bytes of the stories."""
    window_tokens: int
    """Most tokens the model sees at once: its ``seq_length``."""
    stride_tokens: int
    """From the start of a window to that of the next."""


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """How a text is cut up."""

    stride: int | None = None
    """None: ``seq_length``, so that no token is computed twice."""
    batch_size: int = 8
    """Windows at once, at least; rounded up to what the mesh divides."""


def evaluate_run(
    run: Path,
    data: str,
    windows: WindowConfig,
    parallel: ParallelConfig,
    *,
    notify: Callable[[str], None],
    progress: Progress,
) -> Evaluation:
    """The loss of a run's newest readable checkpoint on a text, without dropout.

    In a window only targets count that were not in the window before, so each token has at least
    ``seq_length - stride + 1`` tokens of context, except near the beginning of its stream.

    Args:
        run: the run directory.
        data: a text file, a folder of them or a glob.
        windows: how the text is cut up.
        parallel: the mesh.
        notify: is told of unreadable checkpoints and of characters that are not UTF-8.
        progress: is told how much of the text has been evaluated.

    Raises:
        CheckpointError: there is no run, or none of its checkpoints can be read.
        ConfigError: the mesh or the stride does not fit the model.
        DataError: there is no text.
        NonFiniteError: the loss is not a number.
    """
    corpus = open_corpus(data, None)
    restored = restore_run(run, parallel, notify, batch_size=windows.batch_size)
    layout, seq_length = restored.config.data.layout, restored.config.model.seq_length
    stride = seq_length if windows.stride is None else windows.stride
    require(
        1 <= stride <= seq_length,
        f"eval.stride must be at least 1 and at most the run's model.seq_length {seq_length}, "
        f"got {stride}: {seq_length} makes windows that do not overlap, less gives more context",
    )
    text = TextWindows(corpus, restored.tokenizer, layout, seq_length=seq_length, stride=stride)
    nats, num_tokens = _sum_loss(restored, text, lambda done: progress(done, corpus.total_bytes))
    if text.num_bytes == 0:
        raise DataError(f"{corpus.name} holds nothing but white space: give a text")
    progress(corpus.total_bytes, corpus.total_bytes)
    if replaced := text.counts.num_replaced:
        notify(f"{corpus.name}: {replaced:,} characters were not UTF-8 and were replaced")
    loss = nats / num_tokens
    if not loss < _LARGEST_LOSS:
        raise NonFiniteError(
            f"the loss on {corpus.name} is {loss} nats per token: the weights of step "
            f"{restored.progress.step} of {run} are not finite, or its training diverged"
        )
    return Evaluation(
        step=restored.progress.step,
        layout=layout,
        num_stories=text.counts.num_stories,
        num_bytes=text.num_bytes,
        num_tokens=num_tokens,
        num_first_tokens=text.counts.num_stories if layout == "padded" else 0,
        loss=loss,
        perplexity=math.exp(loss),
        bits_per_byte=nats / math.log(2) / text.num_bytes,
        window_tokens=seq_length,
        stride_tokens=stride,
    )


def _sum_loss(
    restored: RestoredRun, text: TextWindows, progress: Callable[[int], None]
) -> tuple[float, int]:
    """Nats of all targets that count, summed over batches in float64, and their number."""
    config, layout = restored.config, restored.layout
    num_rows = config.train.global_batch_size
    step = make_eval_step(config, restored.spec, layout)
    params = layout.load(restored.params)
    nats, num_tokens = 0.0, 0
    for rows in text.batches(num_rows):
        sums = step(params, *global_batch(layout.mesh, rows, num_rows))
        loss_sum, num_targets = jax.device_get(sums)
        nats, num_tokens = nats + float(loss_sum), num_tokens + int(num_targets)
        progress(text.num_bytes)
    return nats, num_tokens
