import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from ray_cluster import local_cluster

from minigpt.data.batches import Batch, BatchReader, BatchSource
from minigpt.data.ray_source import RaySource, RowPlan, row_dataset
from minigpt.data.store import SPLITS, SplitWriter, StoreSpec, TokenStore, publish
from minigpt.errors import MiniGPTError

pytestmark = [pytest.mark.ray, pytest.mark.slow]

NUM_ROWS = 25
BATCH_SIZE = 8


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_cluster(num_cpus=2):
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    """A padded store of 25 rows, row ``r`` with ``1 + r % 6`` tokens ``r``."""
    directory = tmp_path_factory.mktemp("source")
    spec = StoreSpec(corpus={}, tokenizer="byte", layout="padded", seq_length=5, val_fraction=0.0)
    building = directory / "building"
    building.mkdir()
    writers = {split: SplitWriter(building, split, spec, 256) for split in SPLITS}
    for row in range(NUM_ROWS):
        writers["train"].add(np.full(row % 6, row, np.uint16), first=True, last=True)
    splits = {split: writer.finish() for split, writer in writers.items()}
    return publish(
        building, directory / "store", spec=spec, end_of_text=256, counts={}, splits=splits
    )


def plan_of(store: TokenStore, rows_of_worker: list[list[int]], **changes: Any) -> RowPlan:
    plan = RowPlan(
        store_directory=store.directory,
        rows_of_worker=rows_of_worker,
        batch_size=BATCH_SIZE,
        seed=3,
        shuffle=True,
        start_step=0,
        stop_step=20,
        steps_per_block=3,
    )
    return dataclasses.replace(plan, **changes)


def dealt(num_workers: int) -> list[list[int]]:
    return np.arange(BATCH_SIZE).reshape(num_workers, -1).tolist()


def read_all(plan: RowPlan, *, stop: int | None = None) -> list[list[Batch]]:
    """The batches of each worker, read side by side as a group of workers does."""
    shards = row_dataset(plan).streaming_split(len(plan.rows_of_worker), equal=True)
    stop = plan.stop_step if stop is None else stop

    def read(worker: int) -> list[Batch]:
        source = RaySource(shards[worker], plan.rows_of_worker[worker])
        return list(source.batches(plan.start_step, stop))

    with ThreadPoolExecutor(len(shards)) as pool:
        return list(pool.map(read, range(len(shards)), timeout=300))


def assert_rows_of_the_reader(plan: RowPlan, found: list[list[Batch]], stop: int) -> None:
    reader = BatchReader(
        store=TokenStore(plan.store_directory),
        batch_size=plan.batch_size,
        seed=plan.seed,
        shuffle=plan.shuffle,
    )
    expected = list(reader.batches(plan.start_step, stop))
    for rows, batches in zip(plan.rows_of_worker, found, strict=True):
        assert len(batches) == len(expected)
        for batch, whole in zip(batches, expected, strict=True):
            np.testing.assert_array_equal(batch.tokens, whole.tokens[rows])
            np.testing.assert_array_equal(batch.lengths, whole.lengths[rows])
            assert batch.tokens.dtype == batch.lengths.dtype == np.int32


# The rows of the local path


@pytest.mark.parametrize(("num_workers", "start"), [(1, 0), (1, 7), (2, 0), (2, 7), (4, 0), (4, 7)])
def test_every_worker_gets_its_rows_of_several_epochs(store, num_workers, start):
    plan = plan_of(store, dealt(num_workers), start_step=start)
    assert_rows_of_the_reader(plan, read_all(plan), 20)


@pytest.mark.parametrize(
    "changes",
    [
        {"rows_of_worker": [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]]},
        {"rows_of_worker": [[7, 0], [3, 3], [0, 7]], "shuffle": False},
        {"steps_per_block": 1, "stop_step": 300},  # more blocks than tasks
        {"steps_per_block": None, "seed": 4},
    ],
    ids=str,
)
def test_any_rows_in_any_blocks(store, changes):
    plan = plan_of(store, **{"rows_of_worker": dealt(2), **changes})
    assert_rows_of_the_reader(plan, read_all(plan), plan.stop_step)


def test_a_long_run_begins_at_once_on_a_cluster_whose_cpus_are_taken(store):
    import ray

    class Busy:
        def here(self) -> bool:
            return True

    busy = ray.remote(num_cpus=2)(Busy).remote()
    assert ray.get(busy.here.remote(), timeout=120)
    start = 10**9
    plan = plan_of(store, dealt(4), start_step=start, stop_step=start + 10**6, steps_per_block=8)
    started = time.perf_counter()
    found = read_all(plan, stop=start + 20)
    assert time.perf_counter() - started < 30
    ray.kill(busy)
    assert_rows_of_the_reader(plan, found, start + 20)


# What can go wrong


def test_another_number_of_workers_is_refused(store):
    shards = row_dataset(plan_of(store, dealt(4))).streaming_split(2, equal=True)

    def read(worker: int) -> None:
        with pytest.raises(MiniGPTError, match=r"rows \[[0-7], [0-7]\] where rows"):
            list(RaySource(shards[worker], dealt(2)[worker]).batches(0, 20))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(read, range(2), timeout=300)) == [None, None]


class Blocks:
    """A shard of given blocks."""

    def __init__(self, *blocks: dict[str, Any]) -> None:
        self._blocks = [{name: np.array(column) for name, column in b.items()} for b in blocks]

    def iter_batches(self, *, prefetch_batches: int, batch_size: None, batch_format: str) -> Any:
        assert batch_format == "numpy"
        return iter(self._blocks)


def block(first: int, rows: list[int]) -> dict[str, Any]:
    return {
        "step": [[first, first + 1]],
        "row": [rows],
        "tokens": np.zeros((1, 2, len(rows), 6), np.uint16),
        "lengths": np.ones((1, 2, len(rows)), np.int32),
    }


def test_fake_blocks_are_read():
    source = RaySource(Blocks(block(4, [2, 3]), block(6, [2, 3])), [2, 3])
    assert isinstance(source, BatchSource)
    batches = list(source.batches(4, 7))
    assert [batch.tokens.shape for batch in batches] == [(2, 6)] * 3
    assert list(source.batches(4, 4)) == []


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([block(5, [2, 3])], "step 5 where step 4"),
        ([block(4, [2, 3]), block(8, [2, 3])], "step 8 where step 6"),
        ([block(4, [2, 3]), block(4, [2, 3])], "step 4 where step 6"),
        ([block(4, [2, 3]), block(6, [0, 1])], r"rows \[0, 1\] where rows \[2, 3\]"),
        ([block(4, [2, 3])], "the end of the data where step 6"),
        ([], "the end of the data where step 4"),
    ],
)
def test_what_is_not_due_is_refused(blocks, message):
    with pytest.raises(MiniGPTError, match=message):
        list(RaySource(Blocks(*blocks), [2, 3]).batches(4, 8))
