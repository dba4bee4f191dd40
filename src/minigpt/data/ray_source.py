"""Training batches through Ray Data: each worker of a group is handed exactly its rows.

A Ray Dataset is made of blocks, and `streaming_split` deals them to the workers in turn, block
``j`` to worker ``j % num_workers``, when order is preserved. So a block here is what one worker
needs for its next steps. Which rows these are is arithmetic (`data.order`), as it is without Ray;
several workers may need the same rows. To continue at a step is to make the dataset from there.

Blocks carry their step and rows, and a worker refuses what it did not expect.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import ray.data
from numpy.typing import NDArray
from ray.data import ExecutionOptions, ExecutionResources, TaskPoolStrategy
from ray.data.block import DataBatch

from minigpt.data.batches import Batch
from minigpt.data.order import rows_at
from minigpt.data.store import TOKEN_DTYPE, TokenStore
from minigpt.errors import MiniGPTError

_BLOCK_BYTES = 1024 * 1024
_NUM_TASKS = 256
_NUM_TASKS_AT_ONCE = 2
_BLOCKS_AHEAD = 4  # for each worker
_MIN_BYTES_AHEAD = 64 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class RowPlan:
    """Which rows each worker of a group needs for the steps of a run.

    Attributes:
        store_directory: the token store; every node reads it.
        rows_of_worker: for each worker, its rows within a global batch, as many for each. Two
            workers may have rows in common, as peers of a mesh do.
        batch_size: rows of a global batch.
        seed: ``train.seed``.
        shuffle: ``data.shuffle``.
        start_step: the first step, counted from 0.
        stop_step: the step after the last.
        steps_per_block: steps that a worker gets at once; None: about 1 MiB of tokens.
    """

    store_directory: Path
    rows_of_worker: Sequence[Sequence[int]]
    batch_size: int
    seed: int
    shuffle: bool
    start_step: int
    stop_step: int
    steps_per_block: int | None = None

    def __post_init__(self) -> None:
        """Check what the arithmetic relies on."""
        assert len({len(rows) for rows in self.rows_of_worker}) == 1, "as many rows for each"
        assert all(0 <= row < self.batch_size for rows in self.rows_of_worker for row in rows)
        assert 0 <= self.start_step < self.stop_step


def row_dataset(plan: RowPlan) -> ray.data.Dataset:
    """The dataset of which ``streaming_split(num_workers, equal=True)`` gives each worker its rows.

    Its tasks take no CPU from the cluster and run two at a time, so that workers that hold all
    CPUs cannot starve them.

    Ray Train puts its own execution options in place of those set here: give its ``DataConfig``
    the `execution_options` of the same plan.
    """
    blocks = _Blocks.of(plan)
    # A task makes many blocks one after the other, so that a long run is not a long list of tasks.
    per_task = -(-blocks.num_blocks // _NUM_TASKS)
    ranges = [
        {"first": first, "stop": min(first + per_task, blocks.num_blocks)}
        for first in range(0, blocks.num_blocks, per_task)
    ]
    dataset = ray.data.from_items(ranges, override_num_blocks=len(ranges))
    dataset.context.execution_options = execution_options(plan)
    dataset.context.target_max_block_size = 1  # byte: every row of the dataset is its own block
    dataset.context.enable_progress_bars = False
    return dataset.map_batches(
        partial(_make_blocks, blocks=blocks),
        batch_size=None,
        num_cpus=0,
        compute=TaskPoolStrategy(size=_NUM_TASKS_AT_ONCE),
    )


def execution_options(plan: RowPlan) -> ExecutionOptions:
    """How Ray Data must run the dataset of a plan: in order, and only some blocks ahead."""
    blocks = _Blocks.of(plan)
    ahead = max(_MIN_BYTES_AHEAD, _BLOCKS_AHEAD * blocks.num_workers * blocks.block_bytes)
    return ExecutionOptions(
        preserve_order=True,
        resource_limits=ExecutionResources.for_limits(object_store_memory=ahead),
    )


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    """The blocks of a plan: block ``j`` goes to worker ``j % num_workers``.

    All have as many steps, so those of the last ones may be past ``stop_step``.
    """

    plan: RowPlan
    num_blocks: int
    steps_per_block: int
    block_bytes: int

    @classmethod
    def of(cls, plan: RowPlan) -> "_Blocks":
        row_length = _open_store(plan.store_directory).row_length
        step_bytes = len(plan.rows_of_worker[0]) * row_length * TOKEN_DTYPE.itemsize
        num_steps = plan.stop_step - plan.start_step
        wanted = plan.steps_per_block or max(1, _BLOCK_BYTES // step_bytes)
        steps_per_block = min(wanted, num_steps)
        return cls(
            plan=plan,
            num_blocks=len(plan.rows_of_worker) * -(-num_steps // steps_per_block),
            steps_per_block=steps_per_block,
            block_bytes=steps_per_block * step_bytes,
        )

    @property
    def num_workers(self) -> int:
        return len(self.plan.rows_of_worker)

    def read(self, block: int) -> dict[str, NDArray[Any]]:
        """The columns of a block, ``[1, steps, ...]``: a dataset of one row."""
        plan = self.plan
        turn, worker = divmod(block, self.num_workers)
        first_step = plan.start_step + turn * self.steps_per_block
        steps = np.arange(first_step, first_step + self.steps_per_block)
        rows = np.array(plan.rows_of_worker[worker])
        positions = steps[:, None] * plan.batch_size + rows
        store = _open_store(plan.store_directory)
        num_rows = store.splits["train"].num_rows
        stored = rows_at(positions.ravel(), num_rows, seed=plan.seed, shuffle=plan.shuffle)
        shape = positions.shape
        tokens = store.rows("train", stored).astype(TOKEN_DTYPE)
        return {
            "step": steps[None],
            "row": rows[None],
            "tokens": tokens.reshape(1, *shape, store.row_length),
            "lengths": store.lengths("train", stored).reshape(1, *shape),
        }


def _make_blocks(batch: DataBatch, blocks: _Blocks) -> Iterator[dict[str, NDArray[Any]]]:
    ranges = cast("dict[str, NDArray[Any]]", batch)
    for first, stop in zip(ranges["first"], ranges["stop"], strict=True):
        for block in range(first, stop):
            yield blocks.read(block)


@lru_cache(maxsize=4)
def _open_store(directory: Path) -> TokenStore:
    """Maps a store into memory once in each process; a finished store never changes."""
    return TokenStore(directory)


@runtime_checkable
class Shard(Protocol):
    """What ``ray.train.get_dataset_shard`` returns, as far as it is used here."""

    def iter_batches(
        self, *, prefetch_batches: int, batch_size: None, batch_format: str
    ) -> Iterable[Any]:
        """The blocks of this worker."""
        ...


class RaySource:
    """The rows of one worker, a `BatchSource` that reads its shard once."""

    def __init__(self, shard: Shard, rows: Sequence[int], *, prefetch_blocks: int = 2) -> None:
        """Read the shard of the worker that needs ``rows`` of every global batch."""
        self._shard = shard
        self._rows = list(rows)
        self._prefetch_blocks = prefetch_blocks

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """This worker's rows of steps ``start`` to ``stop - 1``; to be called once.

        ``start`` must be the first step of the dataset. (A second pass would wait until all
        other workers began one too.)

        Raises:
            MiniGPTError: other steps or rows arrived, or the shard ended before ``stop``.
        """
        if start == stop:
            return
        step = start
        for steps, tokens, lengths in self._blocks():
            for index, number in enumerate(steps.tolist()):
                if number != step:
                    raise MiniGPTError(_wrong(f"step {number}", f"step {step}"))
                yield Batch(tokens[index].astype(np.int32), lengths[index])
                step += 1
                if step == stop:  # what is left of the block, and what follows, is not read
                    return
        raise MiniGPTError(_wrong("the end of the data", f"step {step}"))

    def _blocks(self) -> Iterator[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Steps, tokens and lengths of each block, ``[steps, ...]``, views of what Ray holds."""
        for columns in self._shard.iter_batches(
            prefetch_batches=self._prefetch_blocks, batch_size=None, batch_format="numpy"
        ):
            for steps, rows, tokens, lengths in zip(
                *(columns[name] for name in ("step", "row", "tokens", "lengths")), strict=True
            ):
                if rows.tolist() != self._rows:
                    raise MiniGPTError(_wrong(f"rows {rows.tolist()}", f"rows {self._rows}"))
                yield steps, tokens, lengths


def _wrong(found: str, wanted: str) -> str:
    return (
        f"Ray Data handed this worker {found} where {wanted} of the global batch was due, so the "
        "model would train on other data than without Ray; the dataset must be split with "
        "equal=True over as many workers as its plan has, and run with its execution_options "
        "(preserve_order)"
    )
