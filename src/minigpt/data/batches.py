"""Batches of rows: what the training step is fed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32
from numpy.typing import NDArray

from minigpt.data.order import rows_at
from minigpt.data.store import Split, TokenStore


class Batch(NamedTuple):
    """Rows of one step: NumPy arrays on the host, jax arrays on the device.

    Attributes:
        tokens: token ids; inputs are all but the last column, targets all but the first.
        lengths: valid tokens of each row; a target counts if it is within them. 0: a row that
            only fills up the batch.
    """

    tokens: Int32[Any, "rows row"]
    lengths: Int32[Any, " rows"]


@runtime_checkable
class BatchSource(Protocol):
    """Training batches by step; what the loop is given."""

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of steps ``start`` to ``stop - 1`` (steps count from 0)."""
        ...


@dataclass(frozen=True, kw_only=True)
class BatchReader:
    """Reads the batch of any step, or the rows of it that a process holds, from a token store."""

    store: TokenStore
    batch_size: int
    seed: int
    shuffle: bool
    held: tuple[int, ...] | None = None
    """Rows of each global batch to read; none: all."""

    def read(self, step: int) -> Batch:
        """The training batch of a step, counted from 0."""
        positions = step * self.batch_size + self._held_rows
        num_rows = self.store.splits["train"].num_rows
        rows = rows_at(positions, num_rows, seed=self.seed, shuffle=self.shuffle)
        return self._gather("train", rows)

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of steps ``start`` to ``stop - 1``, each read when it is asked for."""
        return (self.read(step) for step in range(start, stop))

    def validation(self, max_rows: int = 0) -> Iterator[Batch]:
        """Validation rows once, in stored order; the last batch is filled with empty rows.

        Args:
            max_rows: read only this many, evenly spaced over the split; 0: all.
        """
        num_rows = self.store.splits["val"].num_rows
        wanted = min(max_rows or num_rows, num_rows)
        chosen = np.arange(wanted) * num_rows // wanted
        for start in range(0, wanted, self.batch_size):
            rows = chosen[start : start + self.batch_size]
            held = self._held_rows[self._held_rows < len(rows)]
            tokens, lengths = self._gather("val", rows[held])
            missing = len(self._held_rows) - len(held)
            yield Batch(np.pad(tokens, ((0, missing), (0, 0))), np.pad(lengths, (0, missing)))

    @property
    def _held_rows(self) -> NDArray[np.int64]:
        return np.arange(self.batch_size) if self.held is None else np.array(self.held, np.int64)

    def _gather(self, split: Split, rows: np.ndarray) -> Batch:
        return Batch(self.store.rows(split, rows), self.store.lengths(split, rows))
