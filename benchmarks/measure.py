"""Reprints the figures of docs/performance.md for this machine, as JSON.

    uv run python benchmarks/measure.py [NAME ...]      (default: all)

Each figure stands beside what it is compared with, measured in the same sitting: these are
ratios, not absolute promises. The training step itself is measured by `minigpt bench`.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from step_profile import STEP, VOCAB

from minigpt.bench import bench, best_seconds
from minigpt.config import CheckpointConfig, Config, ModelConfig, TrainConfig
from minigpt.data.batches import Batch, BatchReader
from minigpt.data.build import build, open_or_build
from minigpt.data.corpus import BuiltinCorpus, ReadCounts, open_corpus
from minigpt.data.grain_source import GrainSource
from minigpt.data.store import StoreSpec
from minigpt.data.tokenizer import Gpt2Tokenizer, load_tokenizer
from minigpt.model.attention import blocked_attention
from minigpt.model.loss import cross_entropy_sum
from minigpt.parallel.mesh import make_mesh
from minigpt.train.checkpoint import Checkpoints, Progress
from minigpt.train.optimizer import make_optimizer
from minigpt.train.state import StateLayout, init_state, model_spec, state_shapes
from minigpt.train.step import make_train_step

PADDED_VOCAB = 50304
LAYOUT = StateLayout(make_mesh((1, 1, 1)), interleave=1, zero=False)


def step(dtype: str) -> dict[str, Any]:
    """The whole step of 6 layers x 384 x 256, batch 8, against the matrix product."""
    train = TrainConfig(global_batch_size=8, compute_dtype=dtype)  # pyright: ignore[reportArgumentType]
    return bench(Config(model=STEP, train=train))


def loss() -> dict[str, Any]:
    """Forward and backward of the loss alone, chunked against all logits at once."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (8, 256, 384))
    embedding = 0.02 * jax.random.normal(keys[1], (PADDED_VOCAB, 384))
    targets = jax.random.randint(keys[2], (8, 256), 0, VOCAB)
    weights = jnp.ones((8, 256))

    def plain(x: jax.Array, embedding: jax.Array, *_: object) -> jax.Array:
        logits = jnp.einsum("btd,vd->btv", x, embedding, preferred_element_type=jnp.float32)
        hit = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return (jax.nn.logsumexp(logits, axis=-1) - hit).sum()

    figures: dict[str, Any] = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        for name, function in (("plain", plain), ("chunked", cross_entropy_sum)):

            def total(x: jax.Array, embedding: jax.Array, function: Any = function) -> jax.Array:  # noqa: ANN401
                cast = x.astype(dtype), embedding.astype(dtype)  # noqa: B023 - called at once
                return function(*cast, targets, weights, VOCAB)

            figures[f"{name} {dtype.__name__}"] = _cost(jax.grad(total, (0, 1)), x, embedding)
    return figures


def attention() -> dict[str, Any]:
    """Forward and backward of attention, blocked against a plain softmax (8 x 256 x 6 x 64)."""

    def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bthk,bshk->bhts", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
        return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores).astype(q.dtype), v)

    figures: dict[str, Any] = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        operands = [
            jax.random.normal(key, (8, 256, 6, 64)).astype(dtype)
            for key in jax.random.split(jax.random.key(0), 3)
        ]
        for name, function in (("plain", plain), ("blocked", blocked_attention)):

            def score(*qkv: jax.Array, function: Any = function) -> jax.Array:  # noqa: ANN401
                return jnp.square(function(*qkv).astype(jnp.float32)).sum()

            figures[f"{name} {dtype.__name__}"] = _cost(jax.grad(score, (0, 1, 2)), *operands)
    return figures


def _cost(function: Callable[..., Any], *arguments: jax.Array) -> dict[str, float]:
    compiled = jax.jit(function).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    return {
        "milliseconds": 1e3 * best_seconds(compiled, *arguments, repeats=4),
        "temporary_mib": memory.temp_size_in_bytes / 2**20,
    }


def compile_time() -> dict[str, float]:
    """Seconds to trace and compile the whole step, by depth."""
    figures: dict[str, float] = {}
    for num_layers in (4, 24):
        config = Config(model=ModelConfig(num_layers=num_layers))
        spec = model_spec(config, VOCAB)
        optimizer = make_optimizer(config.optimizer, config.train.steps)
        state = state_shapes(spec, optimizer, LAYOUT)
        rows = Batch(
            jax.ShapeDtypeStruct((16, 129), jnp.int32), jax.ShapeDtypeStruct((16,), jnp.int32)
        )
        started = time.perf_counter()
        make_train_step(config, spec, LAYOUT).lower(state, rows).compile()
        figures[f"{num_layers} layers"] = time.perf_counter() - started
    return figures


def tokenise() -> dict[str, float]:
    """MB/s of building a store, of our tokenizer, and of tiktoken's own batch call."""
    tokenizer, corpus = Gpt2Tokenizer(), BuiltinCorpus(40_000)
    pieces = [piece.text for piece in corpus.pieces(ReadCounts())]
    size = sum(map(len, pieces)) / 1e6
    tokenizer.encode("load the vocabulary")
    encoding = tokenizer._encoding  # pyright: ignore[reportPrivateUsage]
    rates: dict[str, float] = {}
    for threads in (os.cpu_count() or 1, 8):
        started = time.perf_counter()
        encoding.encode_ordinary_batch(pieces, num_threads=threads)
        rates[f"tiktoken encode_ordinary_batch, {threads} threads"] = size / (
            time.perf_counter() - started
        )
    spec = StoreSpec(
        corpus={}, tokenizer="gpt2", layout="packed", seq_length=256, val_fraction=0.02
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stories.txt"
        path.write_text("<|endoftext|>".join(pieces))
        file = open_corpus(str(path), None)
        started = time.perf_counter()
        build(file, tokenizer, spec, Path(folder) / "store", lambda done, total: None)
        rates["MiniGPT, file to token store"] = size / (time.perf_counter() - started)
    return rates


def microbatches() -> dict[str, float]:
    """Largest relative difference of the loss over 20 float32 steps, 4 microbatches against 1."""
    losses: list[list[float]] = []
    for pieces in (1, 4):
        config = Config(
            model=ModelConfig(num_layers=4, embed_dim=128, seq_length=128, dropout=0.1),
            train=TrainConfig(steps=20, global_batch_size=8),
        )
        config = replace(config, parallel=replace(config.parallel, microbatches=pieces))
        spec = model_spec(config, VOCAB)
        state = init_state(spec, make_optimizer(config.optimizer, 20), 0, LAYOUT)
        train_step = make_train_step(config, spec, LAYOUT)
        losses.append([])
        for seed in range(20):
            tokens = np.random.default_rng(seed).integers(0, VOCAB, (8, 129), np.int32)
            batch = jax.device_put(Batch(tokens, np.full(8, 129, np.int32)))
            state, metrics = train_step(state, batch)
            losses[-1].append(float(metrics.loss))
    one, four = np.array(losses)
    return {"largest relative difference": float(np.abs(four / one - 1).max())}


def input_pipeline() -> dict[str, float]:
    """Steps over Grain's batches against steps over one batch that is on the device already.

    As in MiniGPT's loop a step is dispatched before the metrics of the one before it are read, so
    that batches are read while a step runs. The loops take turns.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = ModelConfig(num_layers=2, num_heads=4, embed_dim=64, seq_length=256)
        config = Config(model=model, train=TrainConfig(global_batch_size=16))
        data = replace(config.data, tokenizer="byte")
        config = replace(config, data=data, run=replace(config.run, directory=folder))
        store, _ = open_or_build(config, lambda done, total: None)
        reader = BatchReader(store=store, batch_size=16, seed=0, shuffle=True)
        spec = model_spec(config, load_tokenizer("byte").vocab_size)
        optimizer = make_optimizer(config.optimizer, config.train.steps)
        train_step = make_train_step(config, spec, LAYOUT)
        held = [init_state(spec, optimizer, 0, LAYOUT)]
        steps, waited = 40, [0.0]

        def seconds(batches: Iterator[Batch]) -> float:
            unread = None
            started = time.perf_counter()
            for _ in range(steps):
                asked = time.perf_counter()
                batch = jax.device_put(next(batches))
                waited[0] += time.perf_counter() - asked
                held[0], metrics = train_step(held[0], batch)
                if unread is not None:
                    jax.block_until_ready(unread)
                unread = metrics
            jax.block_until_ready(unread)
            return (time.perf_counter() - started) / steps

        there = jax.device_put(reader.read(0))
        seconds(itertools.repeat(there))
        rounds, grain, none = 5, list[float](), list[float]()
        waited[0] = 0.0
        for _ in range(rounds):
            grain.append(seconds(GrainSource(reader).batches(0, steps)))
            none.append(seconds(itertools.repeat(there)))
    return {
        "step with its batch there, ms": 1e3 * min(none),
        "ratio over Grain": min(grain) / min(none),
        "asking for a batch while a step runs, ms": 1e3 * waited[0] / steps / rounds,
    }


def checkpoint() -> dict[str, float]:
    """Seconds that saving the default model (and its optimizer) stalls the loop."""
    config = Config(checkpoint=CheckpointConfig(keep=1))
    state = init_state(
        model_spec(config, VOCAB), make_optimizer(config.optimizer, config.train.steps), 0, LAYOUT
    )
    stalled: list[float] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Checkpoints(Path(folder) / "c", keep=1) as checkpoints,
    ):
        for number in range(4):
            started = time.perf_counter()
            checkpoints.save(state, Progress(step=number))
            stalled.append(time.perf_counter() - started)
            started = time.perf_counter()
            checkpoints.wait()
            written = time.perf_counter() - started
    return {"stall, ms": 1e3 * min(stalled[1:]), "written in the background, ms": 1e3 * written}


def start_up() -> dict[str, float]:
    """Seconds of `minigpt --help`, best of five."""
    seconds: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "minigpt", "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - started)
    return {"minigpt --help": min(seconds)}


MEASUREMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "step float32": lambda: step("float32"),
    "step bfloat16": lambda: step("bfloat16"),
    "loss": loss,
    "attention": attention,
    "compile seconds": compile_time,
    "tokenise MB/s": tokenise,
    "microbatches": microbatches,
    "input pipeline": input_pipeline,
    "checkpoint": checkpoint,
    "start-up seconds": start_up,
}

if __name__ == "__main__":
    chosen = sys.argv[1:] or list(MEASUREMENTS)
    print(json.dumps({name: MEASUREMENTS[name]() for name in chosen}, indent=1))
