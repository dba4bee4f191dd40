import dataclasses
import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import placement_group, remove_placement_group
from ray_cluster import local_cluster

from minigpt.config import Config, DataConfig, ModelConfig, RunConfig, TrainConfig
from minigpt.data import ray_build
from minigpt.data.build import build, open_or_build
from minigpt.data.corpus import PIECE_BYTES, open_corpus
from minigpt.data.ray_build import encode_on_cluster, open_or_build_on_cluster
from minigpt.data.store import StoreSpec, TokenStore
from minigpt.data.tokenizer import ByteTokenizer
from minigpt.errors import DataError, MiniGPTError

pytestmark = [pytest.mark.ray, pytest.mark.slow]

DELIMITER = "<|endoftext|>"


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_cluster(num_cpus=2):
        yield


def ignore(done: int, total: int) -> None:
    pass


def refuse(done: int, total: int) -> None:
    raise AssertionError("tokenised again")


def configure(folder: Path, **changes: Any) -> Config:
    config = Config(
        run=RunConfig(directory=str(folder / "local")),
        data=DataConfig(path=str(folder / "texts"), tokenizer="byte", val_fraction=0.1),
        model=ModelConfig(seq_length=63),
        train=TrainConfig(global_batch_size=4),
    )
    for name, value in changes.items():
        group = next(g for g in ("data", "model") if hasattr(getattr(config, g), name))
        replaced = dataclasses.replace(getattr(config, group), **{name: value})
        config = dataclasses.replace(config, **{group: replaced})
    return config


@pytest.fixture
def texts(tmp_path) -> Path:
    """Three files with all that reading meets: long, empty and broken stories, CRLF."""
    folder = tmp_path / "texts"
    folder.mkdir()
    # Enough for several blocks of 1 MiB, so that they could come back in another order.
    short = [f"Story {i}: " + f"it was {i} o'clock. " * (i % 200) + "The end." for i in range(4000)]
    (folder / "a.txt").write_text(f"\n{DELIMITER}\n".join(["", *short, "", ""]))
    long = "".join(f"{number} sheep jumped. " for number in range(5 * PIECE_BYTES // 16))
    (folder / "b.txt").write_bytes(f"{long}{DELIMITER}\r\nCaf\u00e9.\r\n".encode())
    broken = b"A caf\xe9 story.".join([b"Some more text. " * 30] * 40)
    (folder / "c.txt").write_bytes(broken + DELIMITER.encode() * 3)
    return folder


def files_of(store: TokenStore) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.directory.iterdir()}


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# The same store


@pytest.mark.parametrize(
    "change",
    [{}, {"layout": "padded", "tokenizer": "gpt2", "max_stories": 1500}],
    ids=str,
)
def test_store_is_the_local_one_byte_for_byte_and_reused(tmp_path, texts, change):
    config = configure(tmp_path, **change)
    local, _ = open_or_build(config, ignore)
    seen: list[tuple[int, int]] = []
    store, reused = open_or_build_on_cluster(
        config, tmp_path / "shared", lambda done, total: seen.append((done, total))
    )
    assert not reused
    assert store.directory.parent == tmp_path / "shared" / ".tokens"
    assert store.fingerprint == local.fingerprint
    assert files_of(store) == files_of(local)

    size = sum(path.stat().st_size for path in texts.iterdir())
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)
    if not change:
        assert len(set(seen)) > 5
        assert store.counts["num_empty"] == 4
        assert store.counts["num_replaced"] == 39
        assert store.splits["val"].num_rows > 10

    again, reused = open_or_build_on_cluster(config, tmp_path / "shared", refuse)
    assert reused
    assert again.directory == store.directory


# What can go wrong


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def cpus_become_free() -> bool:
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0) < 2:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def failing_tokenizer() -> Any:
    class Failing(ByteTokenizer):  # local, so that it is sent to the workers as it is
        def encode(self, text: str):
            if text.startswith("Story 1500:"):
                raise RuntimeError("out of ideas")
            return ByteTokenizer().encode(text)

    return Failing()


@pytest.mark.usefixtures("no_collection")
def test_failing_tokenizer_tells_the_cause_and_leaves_nothing_behind(tmp_path, texts):
    corpus = open_corpus(str(texts), None)
    spec = StoreSpec(
        corpus=corpus.identity(), tokenizer="byte", layout="padded", seq_length=8, val_fraction=0.0
    )
    target = tmp_path / "shared" / "store"
    with pytest.raises(MiniGPTError) as caught:
        build(corpus, failing_tokenizer(), spec, target, ignore, encode_on_cluster)
    assert str(caught.value) == "tokenising on the Ray cluster failed: RuntimeError: out of ideas"
    assert names_below(tmp_path / "shared") == []
    assert cpus_become_free()


@pytest.mark.usefixtures("no_collection")
def test_unreadable_text_is_the_error_of_the_local_path(tmp_path, texts):
    (texts / "d.txt").write_bytes("é à ".encode("latin-1") * 50_000)
    config = configure(tmp_path, path=str(texts / "d.txt"))
    with pytest.raises(DataError) as local:
        open_or_build(config, ignore)
    with pytest.raises(DataError) as caught:
        open_or_build_on_cluster(config, tmp_path / "shared", ignore)
    assert str(caught.value) == str(local.value)
    assert "d.txt" in str(caught.value)
    assert names_below(tmp_path / "shared" / ".tokens") == []
    assert cpus_become_free()


@pytest.mark.usefixtures("no_collection")
def test_where_no_cpu_becomes_free_the_wait_ends_with_the_reason(tmp_path, texts, monkeypatch):
    monkeypatch.setattr(ray_build, "_PATIENCE_SECONDS", 2)
    others = placement_group([{"CPU": 2}])
    ray.get(others.ready())
    try:
        with pytest.raises(MiniGPTError) as caught:
            open_or_build_on_cluster(configure(tmp_path), tmp_path / "shared", ignore)
    finally:
        remove_placement_group(others)
    assert "nothing went on for 2 s; a process needs a CPU" in str(caught.value)
    assert str(caught.value).endswith("and 0 of the cluster's 2 are free")
    assert names_below(tmp_path / "shared" / ".tokens") == []
    assert cpus_become_free()


def test_after_an_interrupt_nothing_is_left_and_the_built_in_corpus_can_be_built(tmp_path, texts):
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_or_build_on_cluster(configure(tmp_path), tmp_path / "shared", interrupt)
    assert names_below(tmp_path / "shared" / ".tokens") == []

    config = configure(tmp_path, path=None, max_stories=300)
    local, _ = open_or_build(config, ignore)
    store, _ = open_or_build_on_cluster(config, tmp_path / "shared", ignore)
    assert files_of(store) == files_of(local)


@pytest.mark.parametrize("module", ["minigpt.data.ray_build", "minigpt.data.ray_source"])
def test_workers_do_not_import_jax(module):
    """On a GPU it would take most of the memory for itself in each of them."""
    code = f"import sys, {module}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
