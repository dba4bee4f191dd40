import dataclasses
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minigpt.config import Config, DataConfig, ModelConfig, RunConfig, TrainConfig
from minigpt.data import build as module
from minigpt.data import store as store_module
from minigpt.data.build import ValidationChoice, build, open_or_build
from minigpt.data.corpus import PIECE_BYTES, ReadCounts, open_corpus
from minigpt.data.store import TokenStore
from minigpt.data.tokenizer import ByteTokenizer, load_tokenizer
from minigpt.errors import DataError

DELIMITER = "<|endoftext|>"


def ignore(done: int, total: int) -> None:
    pass


def stories(number: int) -> list[str]:
    return [f"Story {i}: " + f"it was {i} o'clock. " * (i % 7) + "The end." for i in range(number)]


def write(path: Path, texts: list[str]) -> Path:
    path.write_text(f"\n{DELIMITER}\n".join(texts))
    return path


def configure(tmp_path: Path, **changes: Any) -> Config:
    """A small configuration; ``changes`` are fields of any group by their own names."""
    config = Config(
        run=RunConfig(directory=str(tmp_path / "runs")),
        data=DataConfig(path=str(tmp_path / "a.txt"), tokenizer="byte", val_fraction=0.1),
        model=ModelConfig(seq_length=31),
        train=TrainConfig(global_batch_size=4),
    )
    for name, value in changes.items():
        group = next(g for g in ("data", "model", "train") if hasattr(getattr(config, g), name))
        replaced = dataclasses.replace(getattr(config, group), **{name: value})
        config = dataclasses.replace(config, **{group: replaced})
    return config


def everything(store: TokenStore, split: Any) -> tuple[np.ndarray, np.ndarray]:
    indices = np.arange(store.splits[split].num_rows)
    return store.rows(split, indices), store.lengths(split, indices)


def valid_tokens(store: TokenStore, split: Any) -> np.ndarray:
    rows, lengths = everything(store, split)
    return np.concatenate([row[:length] for row, length in zip(rows, lengths, strict=True)])


def texts_of(store: TokenStore, split: Any, tokenizer_name: str = "byte") -> list[str]:
    """The stories that a split holds, the last one perhaps in part."""
    text = load_tokenizer(tokenizer_name).decode(valid_tokens(store, split))
    return [text for text in text.split(DELIMITER) if text]


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Rows are the stories


@pytest.mark.parametrize("tokenizer_name", ["byte", "gpt2"])
def test_packed_rows_are_all_training_stories_but_the_last_partial_row(tmp_path, tokenizer_name):
    texts = stories(200)
    write(tmp_path / "a.txt", texts)
    config = configure(tmp_path, tokenizer=tokenizer_name)
    store, reused = open_or_build(config, ignore)
    assert not reused

    val = texts_of(store, "val", tokenizer_name)
    assert set(val) < set(texts)
    assert len(val) == pytest.approx(20, abs=1)
    train = [text for text in texts if text not in val]

    tokenizer = load_tokenizer(tokenizer_name)
    end = np.array([tokenizer.end_of_text], np.uint16)
    expected = np.concatenate([part for text in train for part in (tokenizer.encode(text), end)])
    rows, lengths = everything(store, "train")
    assert rows.size == len(expected) // 32 * 32
    np.testing.assert_array_equal(rows.ravel(), expected[: rows.size])
    assert (lengths == 32).all()

    index = store.splits["train"]
    assert index.num_dropped_tokens == len(expected) - rows.size
    assert index.num_stories == len(train)
    assert store.splits["val"].num_stories == len(val)
    assert store.counts["num_stories"] == 200
    assert store.end_of_text == tokenizer.end_of_text


def test_padded_rows_hold_one_story_each_in_order(tmp_path):
    texts = stories(100)
    write(tmp_path / "a.txt", texts)
    store, _ = open_or_build(configure(tmp_path, layout="padded"), ignore)
    cut = {split: [] for split in ("train", "val")}
    for split in cut:
        rows, lengths = everything(store, split)
        for row, length in zip(rows, lengths, strict=True):
            cut[split].append(ByteTokenizer().decode(row[:length]))
            assert (row[length:] == 256).all()
    expected = [(text + DELIMITER) if len(text) < 32 else text[:32] for text in texts]
    assert not set(cut["train"]) & set(cut["val"])
    assert sorted(cut["train"] + cut["val"]) == sorted(expected)
    assert cut["train"] == [text for text in expected if text in cut["train"]]
    for split, index in store.splits.items():
        chosen = [t for t, e in zip(texts, expected, strict=True) if e in cut[split]]
        assert index.num_truncated_stories == sum(len(text) >= 32 for text in chosen)
        assert index.num_dropped_tokens == sum(max(0, len(text) + 1 - 32) for text in chosen)


def test_padded_long_stories_stay_whole_and_in_one_split(tmp_path):
    texts = [f"{number} " * PIECE_BYTES + "end" for number in range(6)]
    write(tmp_path / "a.txt", texts)
    config = configure(
        tmp_path, layout="padded", seq_length=3 * PIECE_BYTES, val_fraction=0.3, global_batch_size=1
    )
    store, _ = open_or_build(config, ignore)
    assert store.splits["train"].num_dropped_tokens == 0
    assert store.splits["val"].num_rows == 1
    assert sorted(texts_of(store, "train") + texts_of(store, "val")) == texts


def test_padded_validation_exists_though_the_first_story_is_long(tmp_path):
    write(tmp_path / "a.txt", ["word " * PIECE_BYTES, *stories(10)])
    store, _ = open_or_build(configure(tmp_path, layout="padded", val_fraction=0.02), ignore)
    assert store.splits["val"].num_rows == 1
    assert store.splits["val"].num_stories == 1
    assert store.splits["train"].num_rows == store.splits["train"].num_stories == 10


def test_one_long_text_has_both_splits(tmp_path):
    text = "".join(f"{number} sheep jumped. " for number in range(20_000)).strip()
    (tmp_path / "a.txt").write_text(text)
    store, _ = open_or_build(configure(tmp_path, val_fraction=0.05), ignore)
    val, train = valid_tokens(store, "val"), valid_tokens(store, "train")
    assert 0.02 < len(val) / len(train) < 0.1
    decode = ByteTokenizer().decode
    num_text = sum(int((tokens != 256).sum()) for tokens in (val, train))  # 256 ends a part
    assert 0 <= len(text) - num_text <= store.splits["train"].num_dropped_tokens
    sentences = [set(decode(tokens).split(". ")) for tokens in (val, train)]
    assert len(sentences[0] & sentences[1]) < 5  # only what is left of cut sentences


def test_counts_are_kept_in_the_store(tmp_path):
    (tmp_path / "a.txt").write_bytes(f"{DELIMITER}caf".encode() + b"\xe9" + b" text" * 100)
    write(tmp_path / "b.txt", stories(50))
    store, _ = open_or_build(configure(tmp_path, path=str(tmp_path / "*.txt")), ignore)
    assert store.counts["num_empty"] == 1
    assert store.counts["num_replaced"] == 1
    assert store.counts["num_stories"] == 51
    assert store.counts["num_bytes"] == sum(
        (tmp_path / name).stat().st_size for name in ("a.txt", "b.txt")
    )


def test_max_stories(tmp_path):
    write(tmp_path / "a.txt", stories(50))
    store, _ = open_or_build(configure(tmp_path, max_stories=20), ignore)
    assert store.splits["train"].num_stories + store.splits["val"].num_stories == 20
    assert "Story 20" not in "".join(texts_of(store, "train") + texts_of(store, "val"))


def test_built_in_corpus(tmp_path):
    store, _ = open_or_build(configure(tmp_path, path=None, max_stories=100), ignore)
    assert store.counts["num_stories"] == 100
    assert store.corpus["num_stories"] == 100
    assert texts_of(store, "val")


def test_many_batches_of_text_stay_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BATCH_BYTES", 100)
    texts = stories(500)
    write(tmp_path / "a.txt", texts)
    store, _ = open_or_build(configure(tmp_path, val_fraction=0.0), ignore)
    expected = f"{DELIMITER}".join(texts)
    assert expected.startswith(ByteTokenizer().decode(valid_tokens(store, "train")))


def test_progress_rises_to_the_size_of_the_text(tmp_path):
    write(tmp_path / "a.txt", stories(20_000))
    seen: list[tuple[int, int]] = []
    open_or_build(configure(tmp_path), lambda done, total: seen.append((done, total)))
    size = (tmp_path / "a.txt").stat().st_size
    assert len(seen) > 2
    assert {total for _, total in seen} == {size}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (size, size)


# Validation


def test_validation_does_not_depend_on_seed_or_batch(tmp_path):
    write(tmp_path / "a.txt", stories(100))
    first, _ = open_or_build(configure(tmp_path, seed=1), ignore)
    second, reused = open_or_build(configure(tmp_path, seed=2, global_batch_size=8), ignore)
    assert reused
    assert texts_of(first, "val") == texts_of(second, "val")
    elsewhere = dataclasses.replace(
        configure(tmp_path, seed=3), run=RunConfig(directory=str(tmp_path / "other"))
    )
    third, reused = open_or_build(elsewhere, ignore)
    assert not reused
    assert texts_of(first, "val") == texts_of(third, "val")


def choices(fraction: float, number: int) -> list[str]:
    choose = ValidationChoice(fraction)
    return [choose.next_split() for _ in range(number)]


FRACTIONS = [0.001, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 0.99]


@pytest.mark.parametrize(
    "fraction",
    [*FRACTIONS, *(1 / number for number in (3, 6, 7, 9, 11, 12, 49, 98, 103, 107))],
)
def test_about_the_fraction_is_chosen(fraction):
    number = max(2000, int(20 / fraction))
    chosen = choices(fraction, number).count("val")
    assert abs(chosen - number * fraction) <= 1


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_two_stories_are_one_of_each(fraction):
    assert choices(fraction, 2) == ["train", "val"]


def test_no_fraction_chooses_nothing():
    assert set(choices(0.0, 1000)) == {"train"}


def test_choice_has_no_period_and_is_fixed():
    chosen = np.flatnonzero(np.array(choices(0.1, 1000)) == "val")
    assert len(set((chosen % 10).tolist())) > 5
    # A change of these numbers lets a resumed run train on the text that it is judged by.
    assert chosen[:10].tolist() == [1, 17, 21, 32, 48, 51, 68, 78, 86, 98]
    assert (np.diff(chosen // 10) == 1).all()


def test_no_validation(tmp_path):
    write(tmp_path / "a.txt", stories(50))
    store, _ = open_or_build(configure(tmp_path, val_fraction=0.0), ignore)
    assert store.splits["val"].num_rows == 0
    assert store.splits["train"].num_stories == 50


# Reuse


def test_second_run_reuses_the_store(tmp_path, monkeypatch):
    write(tmp_path / "a.txt", stories(50))
    first, reused = open_or_build(configure(tmp_path), ignore)
    assert not reused
    before = (first.directory / "index.json").stat().st_mtime_ns

    def refuse(*args, **kwargs):
        raise AssertionError("tokenised again")

    monkeypatch.setattr(module, "load_tokenizer", refuse)
    second, reused = open_or_build(configure(tmp_path), refuse)
    assert reused
    assert second.directory == first.directory
    assert (second.directory / "index.json").stat().st_mtime_ns == before


def test_touching_or_moving_a_file_changes_nothing(tmp_path):
    path = write(tmp_path / "a.txt", stories(50))
    first, _ = open_or_build(configure(tmp_path), ignore)
    os.utime(path, (1, 1))
    assert open_or_build(configure(tmp_path), ignore)[1]
    (tmp_path / "folder").mkdir()
    path.rename(tmp_path / "folder" / "a.txt")
    moved, reused = open_or_build(configure(tmp_path, path=str(tmp_path / "folder")), ignore)
    assert reused
    assert moved.directory == first.directory


def test_changed_file_makes_a_new_store(tmp_path):
    path = write(tmp_path / "a.txt", stories(50))
    first, _ = open_or_build(configure(tmp_path), ignore)
    stat = path.stat()
    path.write_text(path.read_text().replace("Story 2:", "Story 9:"))  # same size
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    second, reused = open_or_build(configure(tmp_path), ignore)
    assert not reused
    assert second.directory != first.directory
    assert first.corpus != second.corpus


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": "gpt2"},
        {"layout": "padded"},
        {"seq_length": 30},
        {"val_fraction": 0.2},
        {"max_stories": 40},
    ],
    ids=str,
)
def test_what_rows_depend_on_makes_a_new_store(tmp_path, change):
    write(tmp_path / "a.txt", stories(50))
    first, _ = open_or_build(configure(tmp_path), ignore)
    second, reused = open_or_build(configure(tmp_path, **change), ignore)
    assert not reused
    assert second.directory != first.directory
    assert open_or_build(configure(tmp_path), ignore)[1]


@pytest.mark.parametrize("change", [{"num_layers": 2}, {"steps": 7}, {"shuffle": False}], ids=str)
def test_what_rows_do_not_depend_on_reuses_the_store(tmp_path, change):
    write(tmp_path / "a.txt", stories(50))
    open_or_build(configure(tmp_path), ignore)
    assert open_or_build(configure(tmp_path, **change), ignore)[1]


# What can go wrong


def test_truncated_shard(tmp_path):
    write(tmp_path / "a.txt", stories(50))
    store, _ = open_or_build(configure(tmp_path), ignore)
    shard = store.directory / "train-00000.bin"
    os.truncate(shard, shard.stat().st_size - 10)
    with pytest.raises(DataError, match=r"damaged.*delete the folder") as caught:
        open_or_build(configure(tmp_path), ignore)
    assert str(shard) in str(caught.value)
    shutil.rmtree(store.directory)
    assert not open_or_build(configure(tmp_path), ignore)[1]


class FailingTokenizer(ByteTokenizer):
    def encode(self, text: str):
        if text.startswith("Story 40:"):
            raise RuntimeError("out of ideas")
        return super().encode(text)


def test_failing_tokenizer_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_BATCH_BYTES", 10)
    monkeypatch.setattr(store_module, "SHARD_BYTES", 64)
    write(tmp_path / "a.txt", stories(50))
    with monkeypatch.context() as patch:
        patch.setattr(module, "load_tokenizer", lambda name: FailingTokenizer())
        with pytest.raises(RuntimeError, match="out of ideas"):
            open_or_build(configure(tmp_path, layout="padded"), ignore)
    assert names_below(tmp_path / "runs" / ".tokens") == []
    assert not open_or_build(configure(tmp_path, layout="padded"), ignore)[1]


def test_interrupt_leaves_nothing_behind(tmp_path):
    write(tmp_path / "a.txt", stories(50))
    folder = tmp_path / "runs" / ".tokens"
    seen: list[list[str]] = []

    def interrupt(done: int, total: int) -> None:
        seen.append(names_below(folder))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_or_build(configure(tmp_path, layout="padded"), interrupt)
    assert any("train-00000.bin" in name for name in seen[0])  # it had begun to write
    assert names_below(folder) == []


def test_unreadable_text_leaves_nothing_behind(tmp_path):
    write(tmp_path / "a.txt", stories(50))
    (tmp_path / "b.txt").write_bytes("é à ".encode("latin-1") * 5000)
    with pytest.raises(DataError, match="not UTF-8") as caught:
        open_or_build(configure(tmp_path, path=str(tmp_path / "*.txt")), ignore)
    assert "b.txt" in str(caught.value)
    assert names_below(tmp_path / "runs" / ".tokens") == []


def test_too_small_for_one_batch(tmp_path):
    write(tmp_path / "a.txt", ["a" * 40, "b" * 10, "c" * 49])  # the second is for validation
    with pytest.raises(DataError) as caught:
        open_or_build(configure(tmp_path), ignore)
    message = str(caught.value)
    assert str(tmp_path / "a.txt") in message
    assert "91 training tokens in 2 rows of 32 tokens" in message  # 40 + 49 and two ends
    assert "global_batch_size 4 needs 4 of them (128 tokens)" in message
    assert "(up to 2)" in message
    assert open_or_build(configure(tmp_path, global_batch_size=2), ignore)[1]


def test_too_small_for_one_batch_of_stories(tmp_path):
    write(tmp_path / "a.txt", ["One.", "Two.", "Three."])
    with pytest.raises(DataError, match=r"2 stories.*global_batch_size 4 needs 4 of them"):
        open_or_build(configure(tmp_path, layout="padded"), ignore)
    open_or_build(configure(tmp_path, layout="padded", global_batch_size=2), ignore)


def test_too_small_for_one_row(tmp_path):
    write(tmp_path / "a.txt", ["One.", "Two."])
    with pytest.raises(DataError, match=r"5 training tokens in 0 rows") as caught:
        open_or_build(configure(tmp_path), ignore)
    assert "up to" not in str(caught.value)


def test_only_empty_stories(tmp_path):
    write(tmp_path / "a.txt", ["", "", ""])
    with pytest.raises(DataError, match=r"0 training tokens in 0 rows"):
        open_or_build(configure(tmp_path), ignore)


def test_one_story_has_no_validation(tmp_path):
    write(tmp_path / "a.txt", ["word " * 100])
    with pytest.raises(DataError, match=r"no validation rows: 1 stories.*val_fraction to 0"):
        open_or_build(configure(tmp_path), ignore)
    open_or_build(configure(tmp_path, val_fraction=0.0), ignore)


# Several at once


def test_two_build_the_same_store_at_once(tmp_path, monkeypatch):
    write(tmp_path / "a.txt", stories(50))
    config = configure(tmp_path)
    both_are_done = threading.Barrier(2, timeout=20)

    def publish_together(*args, **kwargs) -> TokenStore:
        both_are_done.wait()
        return store_module.publish(*args, **kwargs)

    monkeypatch.setattr(module, "publish", publish_together)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(open_or_build, config, ignore) for _ in range(2)]
        (first, _), (second, _) = (future.result(timeout=30) for future in futures)
    assert first.directory == second.directory
    np.testing.assert_array_equal(everything(first, "train")[0], everything(second, "train")[0])
    assert names_below(tmp_path / "runs" / ".tokens")[0] == first.directory.name
    assert len(list((tmp_path / "runs" / ".tokens").iterdir())) == 1
    assert open_or_build(config, ignore)[1]


def test_build_makes_the_folders_it_needs(tmp_path):
    path = write(tmp_path / "a.txt", stories(50))
    corpus = open_corpus(str(path), None)
    spec = store_module.StoreSpec(
        corpus=corpus.identity(), tokenizer="byte", layout="packed", seq_length=8, val_fraction=0.0
    )
    target = tmp_path / "deep" / "er" / "store"
    store = build(corpus, ByteTokenizer(), spec, target, ignore)
    assert store.directory == target
    assert store.counts["num_characters"] == _characters(path)


def _characters(path: Path) -> int:
    counts = ReadCounts()
    for _ in open_corpus(str(path), None).pieces(counts):
        pass
    return counts.num_characters


def test_a_long_text_cut_by_validation_ends_in_both_splits(tmp_path):
    """Where a validation piece is taken out of one text, its neighbours must not look joined."""
    text = "".join(f"This is sentence number {number}. " for number in range(6000))
    path = tmp_path / "book.txt"
    path.write_text(text)
    config = Config(
        run=RunConfig(directory=str(tmp_path)),
        data=DataConfig(path=str(path), tokenizer="byte", val_fraction=0.2),
        model=ModelConfig(seq_length=64),
        train=TrainConfig(global_batch_size=2),
    )
    store, _ = open_or_build(config, lambda done, total: None)
    tokens = store.rows("train", np.arange(store.splits["train"].num_rows)).reshape(-1)
    parts = ByteTokenizer().decode(tokens).split("<|endoftext|>")
    assert len(parts) > 2
    assert all(part in text for part in parts)
