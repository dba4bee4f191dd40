"""Builds a token store from a corpus, with all cores; `ray_build` does so with a cluster's."""

import collections
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

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


class EncodedBatch(NamedTuple):
    """Consecutive pieces of a corpus as tokens.

    Attributes:
        tokens: token ids of each piece.
        first: whether each piece begins its story.
        last: whether each piece ends its story.
        counts: what reading had met when it had read them.
    """

    tokens: Sequence[NDArray[np.uint16]]
    first: Sequence[bool]
    last: Sequence[bool]
    counts: ReadCounts


Encode = Callable[[Corpus, Tokenizer], Generator[EncodedBatch, None, None]]
"""Gives all pieces of a corpus in order, at least one batch, the last one with the final counts."""

_BATCH_BYTES = 256 * 1024
_SPLIT_KEY = "minigpt validation split"


def encode_with_threads(
    corpus: Corpus, tokenizer: Tokenizer
) -> Generator[EncodedBatch, None, None]:
    """Encode ahead on all cores of this machine.

    Threads are enough: the tokenizer releases the interpreter lock. Batches keep what the
    threads hand over rare.
    """

    def encode(pieces: list[Piece], counts: ReadCounts) -> EncodedBatch:
        tokens = [tokenizer.encode(piece.text) for piece in pieces]
        first, last = [piece.first for piece in pieces], [piece.last for piece in pieces]
        return EncodedBatch(tokens, first, last, counts)

    num_threads = os.cpu_count() or 1
    waiting: collections.deque[Future[EncodedBatch]] = collections.deque()
    with ThreadPoolExecutor(num_threads, "tokenize") as pool:
        for pieces, counts in read_batches(corpus):
            waiting.append(pool.submit(encode, pieces, counts))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()


def open_or_build(
    config: Config,
    progress: Progress,
    *,
    directory: Path | None = None,
    encode: Encode = encode_with_threads,
) -> tuple[TokenStore, bool]:
    """The token store of a configuration, and whether it was there already.

    Args:
        config: says what text, and how its rows are made.
        progress: is told how much of the text has been read.
        directory: where stores are kept, below ``.tokens``; None: ``run.directory``.
        encode: turns text into tokens. The rows do not depend on it.

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
    target = (directory or Path(config.run.directory)) / ".tokens" / spec.fingerprint[:16]
    reused = (target / "index.json").exists()
    if reused:
        store = TokenStore(target)
    else:
        tokenizer = load_tokenizer(config.data.tokenizer)
        store = build(corpus, tokenizer, spec, target, progress, encode)
    _check_enough(store, config, corpus.name)
    return store, reused


def build(
    corpus: Corpus,
    tokenizer: Tokenizer,
    spec: StoreSpec,
    target: Path,
    progress: Progress,
    encode: Encode = encode_with_threads,
) -> TokenStore:
    """Tokenise ``corpus`` into a new store at ``target``; nothing is left there on failure."""
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    building.chmod(0o755)  # a store may be shared
    try:
        with closing(encode(corpus, tokenizer)) as batches:
            splits, counts = _write_splits(
                batches, spec, building, tokenizer.end_of_text, progress, corpus.total_bytes
            )
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


def read_batches(corpus: Corpus) -> Iterator[tuple[list[Piece], ReadCounts]]:
    """The pieces of a corpus in batches, with the counts after each.

    The last batch may hold no pieces: it has the final counts.
    """
    counts = ReadCounts()
    batch: list[Piece] = []
    size = 0
    for piece in corpus.pieces(counts):
        batch.append(piece)
        size += len(piece.text)
        if size >= _BATCH_BYTES:
            yield batch, replace(counts)
            batch, size = [], 0
    yield batch, counts


def _write_splits(
    batches: Iterator[EncodedBatch],
    spec: StoreSpec,
    building: Path,
    end_of_text: int,
    progress: Progress,
    total_bytes: int,
) -> tuple[dict[Split, SplitIndex], ReadCounts]:
    writers: dict[Split, SplitWriter] = {
        split: SplitWriter(building, split, spec, end_of_text) for split in SPLITS
    }
    choose = ValidationChoice(spec.val_fraction)
    split: Split = "train"
    counts = ReadCounts()
    for batch in batches:
        for tokens, first, last in zip(batch.tokens, batch.first, batch.last, strict=True):
            if first or spec.layout == "packed":  # a padded row is one whole story
                previous, split = split, choose.next_split()
                if split != previous:  # what follows in that split is another text
                    writers[previous].end_story()
            writers[split].add(tokens, first=first, last=last)
        counts = batch.counts
        progress(min(counts.num_bytes, total_bytes), total_bytes)
    splits: dict[Split, SplitIndex] = {split: writer.finish() for split, writer in writers.items()}
    progress(total_bytes, total_bytes)
    return splits, counts


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
