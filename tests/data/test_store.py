import dataclasses
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from minigpt.data import store as module
from minigpt.data.store import (
    SPLITS,
    SplitWriter,
    StoreSpec,
    TokenStore,
    lengths_path,
    publish,
    shard_path,
)
from minigpt.errors import DataError

END = 256
SPEC = StoreSpec(
    corpus={"files": [["a.txt", "0123"]]},
    tokenizer="byte",
    layout="packed",
    seq_length=7,
    val_fraction=0.1,
)
PADDED = dataclasses.replace(SPEC, layout="padded")


def tokens(length: int, start: int = 0) -> np.ndarray:
    return (np.arange(start, start + length) % 200).astype(np.uint16)


def write_store(
    directory: Path,
    spec: StoreSpec,
    train: list[np.ndarray],
    val: list[np.ndarray] | None = None,
) -> TokenStore:
    """A store of whole stories."""
    building = directory.with_name(f".{directory.name}-building")
    building.mkdir(parents=True)
    writers = {split: SplitWriter(building, split, spec, END) for split in SPLITS}
    for split, stories in zip(SPLITS, (train, val or []), strict=True):
        for story in stories:
            writers[split].add(story, first=True, last=True)
    return publish(
        building,
        directory,
        spec=spec,
        end_of_text=END,
        counts={"num_stories": len(train) + len(val or [])},
        splits={split: writer.finish() for split, writer in writers.items()},
    )


def everything(store: TokenStore, split: Any = "train") -> tuple[np.ndarray, np.ndarray]:
    indices = np.arange(store.splits[split].num_rows)
    return store.rows(split, indices), store.lengths(split, indices)


def joined(stories: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([part for story in stories for part in (story, [END])])


def some_stories(number: int, seed: int = 0, longest: int = 30) -> list[np.ndarray]:
    random = Random(seed)
    return [tokens(random.randint(1, longest), start=random.randrange(200)) for _ in range(number)]


# Packed rows


def test_packed_rows_are_the_joined_stories(tmp_path):
    stories = some_stories(50)
    store = write_store(tmp_path / "store", SPEC, stories)
    rows, lengths = everything(store)
    expected = joined(stories)
    num_rows = len(expected) // 8
    assert rows.shape == (num_rows, 8)
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(rows.ravel(), expected[: num_rows * 8])
    np.testing.assert_array_equal(lengths, np.full(num_rows, 8))
    assert not lengths_path(store.directory, "train").exists()
    index = store.splits["train"]
    assert (index.num_rows, index.num_stories) == (num_rows, 50)
    assert index.num_tokens == num_rows * 8
    assert index.num_dropped_tokens == len(expected) % 8
    assert index.num_truncated_stories == 0


def test_packed_story_of_many_pieces_ends_once(tmp_path):
    writer = SplitWriter(tmp_path, "train", SPEC, END)
    writer.add(tokens(5), first=True, last=False)
    writer.add(tokens(6, 5), first=False, last=False)
    writer.add(tokens(4, 11), first=False, last=True)
    index = writer.finish()
    assert (index.num_stories, index.num_rows, index.num_dropped_tokens) == (1, 2, 0)
    written = np.fromfile(shard_path(tmp_path, "train", 0), module.TOKEN_DTYPE)
    np.testing.assert_array_equal(written, [*range(15), END])


def test_packed_rows_are_written_before_the_end(tmp_path):
    writer = SplitWriter(tmp_path, "train", SPEC, END)
    for number in range(40):
        writer.add(tokens(10_000, number), first=True, last=True)
    assert shard_path(tmp_path, "train", 0).stat().st_size > 400_000  # memory does not hold all
    assert writer.finish().num_rows == 40 * 10_001 // 8


@pytest.mark.parametrize(("length", "rest"), [(15, 0), (16, 1), (17, 2), (22, 7)])
def test_last_partial_row_is_kept_for_validation_only(tmp_path, length, rest):
    store = write_store(tmp_path / "store", SPEC, [tokens(length)], [tokens(length)])
    expected = joined([tokens(length)])
    train, _ = everything(store, "train")
    np.testing.assert_array_equal(train.ravel(), expected[:16])
    assert store.splits["train"].num_dropped_tokens == rest

    rows, lengths = everything(store, "val")
    if rest > 1:  # a lone token predicts nothing
        assert lengths.tolist() == [8, 8, rest]
        np.testing.assert_array_equal(rows[2], [*expected[16:], *[END] * (8 - rest)])
        assert store.splits["val"].num_dropped_tokens == 0
        assert store.splits["val"].num_tokens == 16 + rest
    else:
        assert lengths.tolist() == [8, 8]
        assert store.splits["val"].num_dropped_tokens == rest
    np.testing.assert_array_equal(rows[:2].ravel(), expected[:16])


def test_a_split_may_have_no_rows(tmp_path):
    store = write_store(tmp_path / "store", SPEC, [tokens(20)])
    assert store.splits["val"].num_rows == 0
    rows, lengths = everything(store, "val")
    assert rows.shape == (0, 8)
    assert lengths.shape == (0,)


# Padded rows


def test_padded_rows_hold_one_story_each(tmp_path):
    stories = [tokens(3), tokens(7, 50), tokens(8, 20), tokens(20, 30), tokens(0), tokens(6)]
    store = write_store(tmp_path / "store", PADDED, stories, [tokens(2)])
    rows, lengths = everything(store)
    assert lengths.tolist() == [4, 8, 8, 8, 1, 7]
    for row, length, story in zip(rows, lengths, stories, strict=True):
        np.testing.assert_array_equal(row[:length], [*story, END][:length])
        np.testing.assert_array_equal(row[length:], END)
    index = store.splits["train"]
    assert index.num_truncated_stories == 2
    assert index.num_dropped_tokens == 1 + 13
    assert index.num_tokens == 36
    assert index.num_stories == index.num_rows == 6
    assert everything(store, "val")[1].tolist() == [3]


@pytest.mark.parametrize("sizes", [(3, 2), (1, 1, 1, 1), (5, 2), (4, 4), (8, 9, 3), (2, 0), (7, 0)])
def test_padded_story_of_many_pieces_is_one_row(tmp_path, sizes):
    writer = SplitWriter(tmp_path, "train", PADDED, END)
    story = tokens(sum(sizes))
    start = 0
    for number, size in enumerate(sizes):
        last = number == len(sizes) - 1
        writer.add(story[start : start + size], first=number == 0, last=last)
        start += size
    writer.add(tokens(2, 100), first=True, last=True)
    index = writer.finish()
    written = np.fromfile(shard_path(tmp_path, "train", 0), module.TOKEN_DTYPE).reshape(-1, 8)
    kept = [*story, END][:8]
    np.testing.assert_array_equal(written[0], kept + [END] * (8 - len(kept)))
    np.testing.assert_array_equal(written[1], [100, 101] + [END] * 6)
    lengths = np.fromfile(lengths_path(tmp_path, "train"), module.LENGTH_DTYPE)
    assert lengths.tolist() == [len(kept), 3]
    assert index.num_stories == index.num_rows == 2
    assert index.num_dropped_tokens == max(0, len(story) + 1 - 8)
    assert index.num_truncated_stories == (len(story) + 1 > 8)


# Shards


@pytest.mark.parametrize("spec", [SPEC, PADDED], ids=["packed", "padded"])
def test_rows_are_the_same_across_shards(tmp_path, monkeypatch, spec):
    train, val = some_stories(60), some_stories(20, seed=1)
    one = write_store(tmp_path / "one", spec, train, val)
    monkeypatch.setattr(module, "SHARD_BYTES", 5 * 8 * 2 + 1)
    many = write_store(tmp_path / "many", spec, train, val)
    for split in SPLITS:
        assert len(one.splits[split].shard_rows) == 1
        assert len(many.splits[split].shard_rows) == -(-one.splits[split].num_rows // 5)
        assert set(many.splits[split].shard_rows[:-1]) == {5}
        for part, other in zip(everything(one, split), everything(many, split), strict=True):
            np.testing.assert_array_equal(part, other)
        indices = np.random.default_rng(0).integers(0, one.splits[split].num_rows, 100)
        np.testing.assert_array_equal(one.rows(split, indices), many.rows(split, indices))
        np.testing.assert_array_equal(one.lengths(split, indices), many.lengths(split, indices))


def test_a_shard_holds_at_least_one_row(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHARD_BYTES", 3)
    store = write_store(tmp_path / "store", SPEC, [tokens(31)])
    assert list(store.splits["train"].shard_rows) == [1, 1, 1, 1]
    np.testing.assert_array_equal(everything(store)[0].ravel(), [*range(31), END])


def test_largest_gpt2_token_is_kept(tmp_path):
    story = np.full(7, 50256, np.uint16)
    assert (everything(write_store(tmp_path / "store", SPEC, [story]))[0][0, :7] == 50256).all()


# Index and fingerprint


def test_store_says_what_it_was_made_from(tmp_path):
    write_store(tmp_path / "store", SPEC, [tokens(20)])
    store = TokenStore(tmp_path / "store")
    assert store.fingerprint == SPEC.fingerprint
    assert store.corpus == SPEC.corpus
    assert store.spec["layout"] == "packed"
    assert (store.row_length, store.end_of_text) == (8, END)
    assert store.counts == {"num_stories": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"corpus": {"files": [["a.txt", "0124"]]}},
        {"tokenizer": "gpt2"},
        {"layout": "padded"},
        {"seq_length": 8},
        {"val_fraction": 0.2},
    ],
)
def test_fingerprint_follows_every_part(change):
    assert dataclasses.replace(SPEC).fingerprint == SPEC.fingerprint
    assert dataclasses.replace(SPEC, **change).fingerprint != SPEC.fingerprint


def test_fingerprint_follows_the_format(monkeypatch):
    before = SPEC.fingerprint
    monkeypatch.setattr(module, "FORMAT", module.FORMAT + 1)
    assert SPEC.fingerprint != before


# Damage


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "shorter":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("how", ["missing", "shorter", "longer"])
@pytest.mark.parametrize("name", ["train-00001.bin", "val-00000.bin", "val-lengths.bin"])
@pytest.mark.parametrize("spec", [SPEC, PADDED], ids=["packed", "padded"])
def test_damaged_file_is_noticed(tmp_path, monkeypatch, name, how, spec):
    monkeypatch.setattr(module, "SHARD_BYTES", 5 * 8 * 2)
    directory = tmp_path / "store"
    write_store(directory, spec, some_stories(60), [tokens(10), tokens(3)])
    damage(directory / name, how)
    with pytest.raises(DataError, match=r"damaged.*delete the folder.*and run again") as caught:
        TokenStore(directory)
    assert str(directory / name) in str(caught.value)


def test_damaged_index_is_noticed(tmp_path):
    directory = tmp_path / "store"
    write_store(directory, SPEC, [tokens(20)])
    index = directory / "index.json"
    index.write_text(index.read_text()[:100])
    with pytest.raises(DataError, match=r"damaged.*delete the folder.*and run again") as caught:
        TokenStore(directory)
    assert str(index) in str(caught.value)


# Publishing


def test_publishing_leaves_only_the_store(tmp_path):
    write_store(tmp_path / "store", SPEC, [tokens(20)])
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    names = sorted(path.name for path in (tmp_path / "store").iterdir())
    assert names == ["index.json", "train-00000.bin"]
    assert json.loads((tmp_path / "store" / "index.json").read_text())["spec"]["seq_length"] == 7


def test_the_first_of_two_publishers_wins_and_both_succeed(tmp_path):
    first = write_store(tmp_path / "store", SPEC, [tokens(20)])
    inode = (tmp_path / "store" / "index.json").stat().st_ino
    second = write_store(tmp_path / "store", SPEC, [tokens(20)])
    assert (tmp_path / "store" / "index.json").stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    np.testing.assert_array_equal(everything(first)[0], everything(second)[0])
