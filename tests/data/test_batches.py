import itertools
from pathlib import Path

import numpy as np
import pytest

from minigpt.data.batches import Batch, BatchReader, BatchSource
from minigpt.data.grain_source import GrainSource
from minigpt.data.order import rows_at
from minigpt.data.store import SPLITS, Split, SplitWriter, StoreSpec, TokenStore, publish

NUM_ROWS = 25
NUM_VAL = 10
LENGTHS = [1 + number % 6 for number in range(NUM_ROWS)]


def write_store(directory: Path, layout: str, num_val: int) -> TokenStore:
    """A store whose training row ``r`` starts with token ``r``, validation row with 100 + r."""
    spec = StoreSpec(corpus={}, tokenizer="byte", layout=layout, seq_length=5, val_fraction=0.0)
    building = directory / "building"
    building.mkdir()
    writers: dict[Split, SplitWriter] = {
        split: SplitWriter(building, split, spec, 256) for split in SPLITS
    }
    for split, number, base in (("train", NUM_ROWS, 0), ("val", num_val, 100)):
        for row in range(number):
            length = LENGTHS[row] if layout == "padded" else 6
            story = np.full(length - 1, base + row, np.uint16)
            writers[split].add(story, first=True, last=True)
    splits: dict[Split, object] = {split: writer.finish() for split, writer in writers.items()}
    return publish(
        building, directory / "store", spec=spec, end_of_text=256, counts={}, splits=splits
    )


@pytest.fixture(params=["packed", "padded"])
def store(tmp_path, request) -> TokenStore:
    return write_store(tmp_path, request.param, NUM_VAL)


@pytest.fixture
def reader(store) -> BatchReader:
    return BatchReader(store=store, batch_size=4, seed=3, shuffle=True)


def assert_equal(one: Batch, other: Batch) -> None:
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.lengths, other.lengths)


def assert_all_equal(some: list[Batch], others: list[Batch]) -> None:
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert_equal(one, other)


# Training


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch_size", [1, 4, 25])
def test_batch_holds_the_rows_of_the_order(store, shuffle, batch_size):
    reader = BatchReader(store=store, batch_size=batch_size, seed=3, shuffle=shuffle)
    for step in (0, 1, 5, 6, 7, 1000, 10**10):
        batch = reader.read(step)
        positions = np.arange(step * batch_size, (step + 1) * batch_size)
        rows = rows_at(positions, NUM_ROWS, seed=3, shuffle=shuffle)
        np.testing.assert_array_equal(batch.tokens, store.rows("train", rows))
        np.testing.assert_array_equal(batch.lengths, store.lengths("train", rows))
        assert batch.tokens.shape == (batch_size, 6)
        assert batch.tokens.dtype == batch.lengths.dtype == np.int32


def test_every_row_once_in_every_epoch_with_its_length(reader):
    batches = list(reader.batches(0, NUM_ROWS))  # 4 epochs of 25 rows in 25 batches of 4
    tokens = np.concatenate([batch.tokens for batch in batches]).reshape(4, NUM_ROWS, 6)
    lengths = np.concatenate([batch.lengths for batch in batches]).reshape(4, NUM_ROWS)
    all_tokens = reader.store.rows("train", np.arange(NUM_ROWS))
    all_lengths = reader.store.lengths("train", np.arange(NUM_ROWS))
    expected = sorted(
        (row.tolist(), length) for row, length in zip(all_tokens, all_lengths, strict=True)
    )
    orders = []
    for epoch in range(4):
        found = [(r.tolist(), n) for r, n in zip(tokens[epoch], lengths[epoch], strict=True)]
        assert sorted(found) == expected
        orders.append(found)
    assert orders[0] != orders[1] != orders[2] != orders[3]


def test_order_depends_on_the_seed_only(store):
    def first(seed: int, **changes) -> list[int]:
        options = {"store": store, "batch_size": NUM_ROWS, "shuffle": True, **changes}
        return BatchReader(seed=seed, **options).read(0).tokens.tolist()

    assert first(0) == first(0)
    assert first(0) != first(1)
    assert first(0, shuffle=False) == first(1, shuffle=False)


def test_batch_size_cuts_the_same_order(store):
    def tokens(batch_size: int) -> np.ndarray:
        reader = BatchReader(store=store, batch_size=batch_size, seed=0, shuffle=True)
        return np.concatenate([batch.tokens for batch in reader.batches(0, 120 // batch_size)])

    np.testing.assert_array_equal(tokens(4), tokens(12))
    np.testing.assert_array_equal(tokens(4), tokens(1))


def test_batches_are_the_steps_of_the_range(reader):
    assert_all_equal(list(reader.batches(5, 9)), [reader.read(step) for step in range(5, 9)])
    assert list(reader.batches(5, 5)) == []


def test_batches_are_read_when_asked_for(reader):
    assert_equal(next(reader.batches(3, 10**12)), reader.read(3))


# Validation


@pytest.mark.parametrize("batch_size", [1, 3, 4, 5, 10, 16])
def test_validation_holds_every_row_once(store, batch_size):
    reader = BatchReader(store=store, batch_size=batch_size, seed=3, shuffle=True)
    batches = list(reader.validation())
    assert len(batches) == -(-NUM_VAL // batch_size)
    assert {batch.tokens.shape for batch in batches} == {(batch_size, 6)}
    assert {batch.lengths.shape for batch in batches} == {(batch_size,)}
    tokens = np.concatenate([batch.tokens for batch in batches])
    lengths = np.concatenate([batch.lengths for batch in batches])
    np.testing.assert_array_equal(tokens[:NUM_VAL], store.rows("val", np.arange(NUM_VAL)))
    np.testing.assert_array_equal(lengths[:NUM_VAL], store.lengths("val", np.arange(NUM_VAL)))
    assert (lengths[:NUM_VAL] > 0).all()
    assert (lengths[NUM_VAL:] == 0).all()
    assert (tokens[NUM_VAL:] == 0).all()
    assert tokens.dtype == lengths.dtype == np.int32


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shuffle", [True, False])
def test_validation_depends_on_neither_seed_nor_shuffle(store, reader, seed, shuffle):
    other = BatchReader(store=store, batch_size=4, seed=seed, shuffle=shuffle)
    assert_all_equal(list(reader.validation()), list(other.validation()))


@pytest.mark.parametrize(
    ("max_rows", "expected"),
    [
        (1, [0]),
        (2, [0, 5]),
        (3, [0, 3, 6]),
        (4, [0, 2, 5, 7]),
        (5, [0, 2, 4, 6, 8]),
        (10, list(range(10))),
        (11, list(range(10))),
        (0, list(range(10))),
    ],
)
def test_some_validation_rows_are_evenly_spaced(store, reader, max_rows, expected):
    batches = list(reader.validation(max_rows))
    assert len(batches) == -(-len(expected) // 4)
    tokens = np.concatenate([batch.tokens for batch in batches])
    lengths = np.concatenate([batch.lengths for batch in batches])
    rows = np.array(expected)
    np.testing.assert_array_equal(tokens[: len(rows)], store.rows("val", rows))
    np.testing.assert_array_equal(lengths[: len(rows)], store.lengths("val", rows))
    assert (lengths[len(rows) :] == 0).all()


@pytest.mark.parametrize("max_rows", [0, 5])
def test_no_validation_rows_are_no_batches(tmp_path, max_rows):
    store = write_store(tmp_path, "packed", 0)
    reader = BatchReader(store=store, batch_size=4, seed=0, shuffle=True)
    assert list(reader.validation(max_rows)) == []


# Grain


@pytest.mark.parametrize("num_threads", [0, 1, 4])
@pytest.mark.parametrize("buffer_size", [1, 4])
def test_grain_gives_the_batches_of_the_reader(reader, num_threads, buffer_size):
    source = GrainSource(reader, num_threads=num_threads, buffer_size=buffer_size)
    batches = list(source.batches(0, 20))
    assert_all_equal(batches, list(reader.batches(0, 20)))
    assert all(isinstance(batch, Batch) for batch in batches)
    assert {batch.tokens.dtype for batch in batches} == {np.dtype(np.int32)}


@pytest.mark.parametrize("start", [1, 6, 19, 20])
def test_grain_from_a_step_is_the_tail_of_grain_from_the_beginning(reader, start):
    source = GrainSource(reader)
    whole = list(source.batches(0, 20))
    assert_all_equal(list(source.batches(start, 20)), whole[start:])
    assert_all_equal(list(source.batches(0, start)), whole[:start])


def test_grain_starts_at_a_far_step_at_once(reader):
    start = 10**9
    some = list(itertools.islice(GrainSource(reader).batches(start, start + 1000), 3))
    assert_all_equal(some, list(reader.batches(start, start + 3)))


def test_grain_source_can_be_read_twice(reader):
    source = GrainSource(reader)
    assert_all_equal(list(source.batches(2, 5)), list(source.batches(2, 5)))


def test_grain_hands_on_errors(reader, monkeypatch):
    def fail(self, step: int) -> Batch:
        raise OSError(f"step {step} is gone")

    monkeypatch.setattr(BatchReader, "read", fail)
    with pytest.raises(OSError, match="step 7 is gone"):
        next(GrainSource(reader).batches(7, 9))


def test_both_are_batch_sources(reader):
    assert isinstance(reader, BatchSource)
    assert isinstance(GrainSource(reader), BatchSource)
