"""Builds a token store from a corpus, with all cores."""

import collections
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minigpt.config import Config
from minigpt.data.corpus import Corpus, Piece, ReadCounts, open_corpus
from minigpt.data.store import (
    SPLITS,
    Split,
    SplitIndex,
    SplitWriter,
    StoreSpec,
    TokenStore,
    publish,
)
from minigpt.data.tokenizer import Tokenizer, load_tokenizer
from minigpt.errors import DataError

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes in all."""

_BATCH_BYTES = 256 * 1024
_SPLIT_KEY = "minigpt validation split"


def open_or_build(config: Config, progress: Progress) -> tuple[TokenStore, bool]:
    """The token store of a configuration, and whether it was there already.

    Raises:
        DataError: the corpus cannot be read, is empty, or too small for one batch.
    """
    corpus = open_corpus(config.data.path, config.data.max_stories)
    spec = StoreSpec(
        corpus=corpus.identity(),
        tokenizer=config.data.tokenizer,
        layout=config.data.layout,
        seq_length=config.model.seq_length,
        val_fraction=config.data.val_fraction,
    )
    target = Path(config.run.directory) / ".tokens" / spec.fingerprint[:16]
    reused = (target / "index.json").exists()
    if reused:
        store = TokenStore(target)
    else:
        store = build(corpus, load_tokenizer(config.data.tokenizer), spec, target, progress)
    _check_enough(store, config, corpus.name)
    return store, reused


def build(
    corpus: Corpus, tokenizer: Tokenizer, spec: StoreSpec, target: Path, progress: Progress
) -> TokenStore:
    """Tokenise ``corpus`` into a new store at ``target``; nothing is left there on failure."""
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    building.chmod(0o755)  # a store may be shared
    try:
        counts = ReadCounts()
        writers: dict[Split, SplitWriter] = {
            split: SplitWriter(building, split, spec, tokenizer.end_of_text) for split in SPLITS
        }
        choose = ValidationChoice(spec.val_fraction)
        split: Split = "train"
        total = corpus.total_bytes
        for batch, token_arrays in _encoded(corpus.pieces(counts), tokenizer):
            for piece, tokens in zip(batch, token_arrays, strict=True):
                if piece.first or spec.layout == "packed":  # a padded row is one whole story
                    previous, split = split, choose.next_split()
                    if split != previous:  # what follows in that split is another text
                        writers[previous].end_story()
                writers[split].add(tokens, first=piece.first, last=piece.last)
            progress(min(counts.num_bytes, total), total)
        splits: dict[Split, SplitIndex] = {
            split: writer.finish() for split, writer in writers.items()
        }
        progress(total, total)
        return publish(
            building,
            target,
            spec=spec,
            end_of_text=tokenizer.end_of_text,
            counts=asdict(counts),
            splits=splits,
        )
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


class ValidationChoice:
    """A fixed choice of about ``fraction`` of the pieces, one in each run of ``1 / fraction``.

    (Pieces of packed text, so that one long text has both splits; whole stories if padded.)

    Which one of a run is a hash of the run's number, so the choice does not follow a period of
    the text. The second piece is always chosen, so that two are enough to have both splits.
    The choice depends on nothing but the fraction: every seed is judged on the same text.
    """

    def __init__(self, fraction: float) -> None:
        """Start at the first piece."""
        self._fraction = fraction
        self._index = -1
        self._chosen = 1 if fraction > 0 else -1
        self._run = 0

    def next_split(self) -> Split:
        """The split of the next piece."""
        self._index += 1
        if self._fraction == 0:
            return "train"
        run = int(self._index * self._fraction)
        if run > self._run:
            self._run = run
            length = max(1, int(1 / self._fraction))
            digest = hashlib.sha256(f"{_SPLIT_KEY}/{run}".encode()).digest()
            self._chosen = self._index + int.from_bytes(digest[:8], "little") % length
        return "val" if self._index == self._chosen else "train"


def _encoded(
    pieces: Iterator[Piece], tokenizer: Tokenizer
) -> Iterator[tuple[list[Piece], list[NDArray[np.uint16]]]]:
    """Batches of pieces with their tokens, in order, encoded ahead on all cores.

    Threads are enough: the tokenizer releases the interpreter lock. Batches keep what the
    threads hand over rare.
    """

    def encode(batch: list[Piece]) -> list[NDArray[np.uint16]]:
        return [tokenizer.encode(piece.text) for piece in batch]

    num_threads = os.cpu_count() or 1
    waiting: collections.deque[tuple[list[Piece], Future[list[NDArray[np.uint16]]]]]
    waiting = collections.deque()
    with ThreadPoolExecutor(num_threads, "tokenize") as pool:
        for batch in _batches(pieces):
            waiting.append((batch, pool.submit(encode, batch)))
            if len(waiting) > 2 * num_threads:
                done, future = waiting.popleft()
                yield done, future.result()
        for done, future in waiting:
            yield done, future.result()


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_enough(store: TokenStore, config: Config, name: str) -> None:
    batch, row = config.train.global_batch_size, store.row_length
    train, val = store.splits["train"], store.splits["val"]
    have = train.num_tokens + train.num_dropped_tokens
    if train.num_rows < batch:
        per_row = "stories" if config.data.layout == "padded" else f"rows of {row} tokens"
        raise DataError(
            f"data.path: {name} is too small for one batch: it has {have} training tokens in "
            f"{train.num_rows} {per_row}, and train.global_batch_size {batch} needs "
            f"{batch} of them ({batch * row} tokens); use a longer text, a smaller "
            f"train.global_batch_size{_smaller_batch(train.num_rows)} or a smaller "
            "model.seq_length"
        )
    if config.data.val_fraction > 0 and val.num_rows == 0:
        raise DataError(
            f"data.path: {name} has no validation rows: {train.num_stories + val.num_stories} "
            f"stories with data.val_fraction {config.data.val_fraction}; two stories are the "
            "least, or set data.val_fraction to 0 to train without validation"
        )


def _smaller_batch(num_rows: int) -> str:
    return f" (up to {num_rows})" if num_rows else ""
