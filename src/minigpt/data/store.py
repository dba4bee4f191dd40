"""The token store: a corpus tokenised once, cut into rows, on disk and memory-mapped.

```
STORE/index.json           what it was made from, and what is in it
STORE/train-00000.bin ...  rows of seq_length + 1 token ids (uint16), one after the other
STORE/val-00000.bin        the same for the validation stories
STORE/SPLIT-lengths.bin    valid tokens of each row (uint32); without the file every row is full
```

The folder's name is the fingerprint of all that the rows depend on: a changed file, a new store.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from minigpt.errors import DataError

FORMAT = 1
TOKEN_DTYPE = np.dtype("<u2")
LENGTH_DTYPE = np.dtype("<u4")
SHARD_BYTES = 64 * 1024 * 1024

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """Everything that the rows depend on."""

    corpus: dict[str, object]
    tokenizer: str
    layout: Literal["packed", "padded"]
    seq_length: int
    val_fraction: float

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the specification, in hexadecimal."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class SplitIndex:
    """What a split holds."""

    num_rows: int
    num_tokens: int
    num_stories: int
    num_dropped_tokens: int
    """Tokens that no row holds: the last partial row (packed), or what was cut off (padded)."""
    num_truncated_stories: int
    shard_rows: Sequence[int]


class TokenStore:
    """Reads rows of a finished store.

    Raises:
        DataError: a file of the store is missing or has another size than the index says.
    """

    def __init__(self, directory: Path) -> None:
        """Read the index and check the sizes of all files against it."""
        self.directory = directory
        try:
            index = json.loads((directory / "index.json").read_text())
        except ValueError as error:
            raise DataError(
                f"the token store is damaged: {str(directory / 'index.json')!r} is not JSON "
                f"({error}); delete the folder {str(directory)!r} and run again"
            ) from error
        self.fingerprint: str = index["fingerprint"]
        self.spec: dict[str, Any] = index["spec"]
        self.counts: dict[str, int] = index["counts"]
        self.end_of_text: int = index["end_of_text"]
        self.row_length: int = index["spec"]["seq_length"] + 1
        self.splits: dict[Split, SplitIndex] = {
            split: SplitIndex(**index["splits"][split]) for split in SPLITS
        }
        for split in SPLITS:
            self._check_sizes(split)

    def _check_sizes(self, split: Split) -> None:
        index = self.splits[split]
        row_bytes = self.row_length * TOKEN_DTYPE.itemsize
        expected = {
            shard_path(self.directory, split, number): rows * row_bytes
            for number, rows in enumerate(index.shard_rows)
        }
        has_padding = index.num_tokens < index.num_rows * self.row_length
        if has_padding or lengths_path(self.directory, split).exists():
            size = index.num_rows * LENGTH_DTYPE.itemsize
            expected[lengths_path(self.directory, split)] = size
        for path, size in expected.items():
            found = path.stat().st_size if path.exists() else None
            if found != size:
                raise DataError(
                    f"the token store is damaged: {str(path)!r} has {found} bytes, its index "
                    f"says {size}; delete the folder {str(self.directory)!r} and run again"
                )

    @property
    def corpus(self) -> dict[str, Any]:
        """The identity of the corpus: its files and their hashes."""
        return self.spec["corpus"]

    @cached_property
    def _shards(self) -> dict[Split, list[NDArray[np.uint16]]]:
        return {
            split: [
                np.memmap(
                    shard_path(self.directory, split, number),
                    TOKEN_DTYPE,
                    mode="r",
                    shape=(rows, self.row_length),
                )
                for number, rows in enumerate(self.splits[split].shard_rows)
            ]
            for split in SPLITS
        }

    @cached_property
    def _lengths(self) -> dict[Split, NDArray[np.uint32] | None]:
        return {
            split: np.fromfile(lengths_path(self.directory, split), LENGTH_DTYPE)
            if lengths_path(self.directory, split).exists()
            else None
            for split in SPLITS
        }

    def rows(self, split: Split, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Token ids of rows, ``[rows, seq_length + 1]``."""
        ends = np.cumsum(self.splits[split].shard_rows)
        shards = np.searchsorted(ends, indices, side="right")
        tokens = np.empty((len(indices), self.row_length), np.int32)
        for place, (shard, row) in enumerate(zip(shards, indices, strict=True)):
            start = ends[shard] - self.splits[split].shard_rows[shard]
            tokens[place] = self._shards[split][shard][row - start]
        return tokens

    def lengths(self, split: Split, indices: NDArray[np.int64]) -> NDArray[np.int32]:
        """Valid tokens of rows, ``[rows]``: what is beyond is padding."""
        lengths = self._lengths[split]
        if lengths is None:
            return np.full(len(indices), self.row_length, np.int32)
        return lengths[indices].astype(np.int32)


class SplitWriter:
    """Writes the rows of one split into shards."""

    def __init__(self, directory: Path, split: Split, spec: StoreSpec, end_of_text: int) -> None:
        """Start with no rows."""
        self._directory = directory
        self._split: Split = split
        self._row_length = spec.seq_length + 1
        self._padded = spec.layout == "padded"
        self._end_of_text = end_of_text
        self._rows_per_shard = max(1, SHARD_BYTES // (self._row_length * TOKEN_DTYPE.itemsize))
        self._pending: list[NDArray[np.uint16]] = []
        self._num_pending = 0
        self._shard_rows: list[int] = []
        self._lengths: list[int] = []
        self._in_story = False
        self._story = np.empty(0, TOKEN_DTYPE)
        self._story_is_cut = False
        self._num_stories = self._num_truncated = self._num_dropped = self._num_tokens = 0

    def add(self, tokens: NDArray[np.uint16], *, first: bool, last: bool) -> None:
        """Add the tokens of a piece of a story; the last piece ends with end-of-text."""
        if last:
            tokens = np.append(tokens, TOKEN_DTYPE.type(self._end_of_text))
            self._num_stories += 1
        if self._padded:
            self._add_padded(tokens, first=first, last=last)
        else:
            self._add_packed(tokens)
            self._in_story = not last

    def end_story(self) -> None:
        """Write end-of-text if the next piece does not continue the last one (packed only)."""
        if self._in_story:
            self._add_packed(np.array([self._end_of_text], TOKEN_DTYPE))
            self._in_story = False

    def _add_packed(self, tokens: NDArray[np.uint16]) -> None:
        self._pending.append(tokens)
        self._num_pending += len(tokens)
        if self._num_pending >= max(self._row_length, 1 << 18):
            self._write_full_rows()

    def _add_padded(self, tokens: NDArray[np.uint16], *, first: bool, last: bool) -> None:
        if first:
            self._story, self._story_is_cut = tokens[:0], False
        kept = tokens[: self._row_length - len(self._story)]
        self._story = np.append(self._story, kept)
        self._story_is_cut |= len(kept) < len(tokens)
        self._num_dropped += len(tokens) - len(kept)
        if last:
            self._num_truncated += self._story_is_cut
            self._write_padded(self._story)

    def _write_padded(self, tokens: NDArray[np.uint16]) -> None:
        missing = self._row_length - len(tokens)
        self._lengths.append(len(tokens))
        self._num_tokens += len(tokens)
        self._write(np.pad(tokens, (0, missing), constant_values=self._end_of_text))

    def _write_full_rows(self) -> None:
        stream = np.concatenate(self._pending) if self._pending else np.empty(0, TOKEN_DTYPE)
        full = len(stream) // self._row_length * self._row_length
        self._write(stream[:full])
        self._num_tokens += full
        self._pending, self._num_pending = [stream[full:]], len(stream) - full

    def _write(self, rows: NDArray[np.uint16]) -> None:
        """Append whole rows, opening a new shard where one is full."""
        rows = rows.reshape(-1, self._row_length)
        while len(rows):
            if not self._shard_rows or self._shard_rows[-1] == self._rows_per_shard:
                self._shard_rows.append(0)
            here = rows[: self._rows_per_shard - self._shard_rows[-1]]
            path = shard_path(self._directory, self._split, len(self._shard_rows) - 1)
            with path.open("ab") as stream:
                stream.write(here.astype(TOKEN_DTYPE).tobytes())
            self._shard_rows[-1] += len(here)
            rows = rows[len(here) :]

    def finish(self) -> SplitIndex:
        """Write what is left and say what the split holds.

        The last partial row of the packed training split is dropped. The validation split keeps
        it, padded, so that a small corpus has validation rows at all.
        """
        if not self._padded:
            self._write_full_rows()
            rest = self._pending[0]
            if self._split == "val" and len(rest) > 1:
                full_rows = sum(self._shard_rows)
                self._lengths = [self._row_length] * full_rows
                self._write_padded(rest)
            else:
                self._num_dropped += len(rest)
        if self._lengths:
            np.array(self._lengths, LENGTH_DTYPE).tofile(lengths_path(self._directory, self._split))
        return SplitIndex(
            num_rows=sum(self._shard_rows),
            num_tokens=self._num_tokens,
            num_stories=self._num_stories,
            num_dropped_tokens=self._num_dropped,
            num_truncated_stories=self._num_truncated,
            shard_rows=tuple(self._shard_rows),
        )


def shard_path(directory: Path, split: Split, number: int) -> Path:
    """File of a shard of a split."""
    return directory / f"{split}-{number:05d}.bin"


def lengths_path(directory: Path, split: Split) -> Path:
    """File of the valid lengths of a split's rows."""
    return directory / f"{split}-lengths.bin"


def publish(
    building: Path, target: Path, *, spec: StoreSpec, end_of_text: int, counts: dict[str, int],
    splits: dict[Split, SplitIndex],
) -> TokenStore:  # fmt: skip
    """Write the index and move a finished store to its name in one step."""
    index = {
        "fingerprint": spec.fingerprint,
        "spec": asdict(spec),
        "end_of_text": end_of_text,
        "counts": counts,
        "splits": {name: asdict(split) for name, split in splits.items()},
    }
    (building / "index.json").write_text(json.dumps(index, indent=1))
    try:
        os.replace(building, target)
    except OSError as error:
        if not (target / "index.json").exists():
            raise DataError(
                f"the token store cannot be written: {error}; if the folder {str(target)!r} is "
                "what is left of a store, delete it and run again"
            ) from error
        shutil.rmtree(building)  # another process was faster; its rows are the same
    return TokenStore(target)
