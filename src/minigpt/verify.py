"""Proves a mesh: the same small training on one device and on the mesh, compared."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from rich.table import Table

from minigpt.config import (
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RunConfig,
    TrainConfig,
)
from minigpt.data.batches import BatchReader
from minigpt.data.build import open_or_build
from minigpt.data.tokenizer import ByteTokenizer
from minigpt.parallel.rows import global_batch, held_rows
from minigpt.train.gradients import ParallelModel
from minigpt.train.optimizer import make_optimizer
from minigpt.train.state import StateLayout, init_state, model_spec
from minigpt.train.step import make_train_step

TOLERANCES = {
    "initial parameters": 0.0,
    "rows of each batch": 0.0,
    "loss of each step, relative": 2e-6,
    "gradients, relative to their norm": 1e-5,
    "gradient norm of each step, relative": 2e-5,
    "final parameters": 1e-5,
}
"""Quantity and the largest difference allowed, in float32."""


@dataclass(frozen=True)
class Verdict:
    """A mesh and the largest difference of each quantity from one device."""

    parallel: ParallelConfig
    differences: dict[str, float]

    @property
    def ok(self) -> bool:
        """Whether every difference is within its tolerance (and is a number)."""
        return all(self.differences[name] <= limit for name, limit in TOLERANCES.items())


class Evidence(NamedTuple):
    """What a training left behind, on the host, as on one device."""

    initial: Any
    rows: list[np.ndarray]
    metrics: np.ndarray
    gradients: Any
    final: Any


def prepare(meshes: list[ParallelConfig], folder: Path, *, steps: int, dropout: float) -> Config:
    """A small model that all the meshes divide, on one device, with its tokens in ``folder``.

    Args:
        meshes: with ``data`` resolved.
        folder: for the tokens; all processes can read it.
        steps: training steps.
        dropout: of the model.
    """
    config = _small_config(meshes, folder, steps, dropout)
    open_or_build(config, lambda done, total: None)
    return config


def verify(
    config: Config,
    meshes: list[ParallelConfig],
    expected: Evidence,
    *,
    notify: Callable[[Verdict], None],
) -> list[Verdict]:
    """Train on each mesh and compare with one device; every process of the runtime calls this.

    Args:
        config: as ``prepare`` made it for these meshes.
        meshes: with ``data`` resolved.
        expected: of one device.
        notify: is told each verdict.

    Raises:
        ConfigError: a mesh does not fit the devices.
    """
    verdicts: list[Verdict] = []
    for parallel in meshes:
        found = train(replace(config, parallel=parallel))
        verdicts.append(Verdict(parallel, _differences(found, expected)))
        notify(verdicts[-1])
    return verdicts


def all_meshes(num_devices: int, microbatches: int) -> Iterator[ParallelConfig]:
    """Every mesh of that many devices, with all that each can do differently."""
    for pipe in _divisors(num_devices):
        for model in _divisors(num_devices // pipe):
            data = num_devices // (pipe * model)
            mesh = ParallelConfig(pipe=pipe, data=data, model=model, microbatches=microbatches)
            yield mesh
            if pipe > 1:
                yield replace(mesh, interleave=2)
                yield replace(mesh, schedule="gpipe")
            if data > 1:
                yield replace(mesh, zero=1)
            if model > 1:
                yield replace(mesh, sequence=True)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _small_config(meshes: list[ParallelConfig], folder: Path, steps: int, dropout: float) -> Config:
    """One device's configuration that every mesh (``data`` resolved) divides."""
    layers = int(np.lcm.reduce([mesh.pipe * mesh.interleave for mesh in meshes]))
    peers = [mesh.model for mesh in meshes]
    heads = int(np.lcm.reduce([4, *peers]))
    groups = [mesh.microbatches * mesh.data for mesh in meshes]
    return Config(
        run=RunConfig(directory=str(folder), name="verify"),
        data=DataConfig(tokenizer="byte", max_stories=100),
        model=ModelConfig(
            num_layers=max(2, layers),
            num_heads=heads,
            embed_dim=8 * heads,
            seq_length=int(np.lcm.reduce([32, *peers])),
            dropout=dropout,
        ),
        optimizer=OptimizerConfig(learning_rate=1e-3, min_learning_rate=1e-4, warmup_steps=2),
        train=TrainConfig(steps=steps, global_batch_size=int(np.lcm.reduce([8, *groups]))),
        parallel=ParallelConfig(data=1),
    )


def train(config: Config) -> Evidence:
    """A few steps, and everything there is to compare."""
    layout = StateLayout.of(config.parallel)
    spec = model_spec(config, ByteTokenizer.vocab_size)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    state = init_state(spec, optimizer, config.train.seed, layout)
    step = make_train_step(config, spec, layout)
    store, _ = open_or_build(config, lambda done, total: None)
    num_rows = config.train.global_batch_size
    reader = BatchReader(
        store=store,
        batch_size=num_rows,
        seed=config.train.seed,
        shuffle=True,
        held=tuple(held_rows(layout.mesh, num_rows).tolist()),
    )
    whole = jax.jit(lambda x: x, out_shardings=NamedSharding(layout.mesh, PartitionSpec()))

    def host(params: Any) -> Any:  # noqa: ANN401 - a tree of parameters
        return jax.tree.map(lambda leaf: np.asarray(whole(leaf)), layout.save(params))

    initial, gradients = host(state.params), None
    rows: list[np.ndarray] = []
    metrics: list[list[float]] = []
    for number, batch in enumerate(reader.batches(0, config.train.steps)):
        placed = global_batch(layout.mesh, batch, num_rows)
        rows.append(np.asarray(whole(placed.tokens)))
        if number == 0:
            model = ParallelModel(config, spec, layout)
            gradients = host(jax.jit(model.gradients)(state.params, placed, state.step)[0])
        state, latest = step(state, placed)
        metrics.append([float(latest.loss), float(latest.grad_norm)])
    return Evidence(initial, rows, np.array(metrics), gradients, host(state.params))


def _differences(found: Evidence, expected: Evidence) -> dict[str, float]:
    """Largest difference of each quantity in ``TOLERANCES``, in its order."""

    def largest(first: Any, second: Any, scale: Callable[[np.ndarray], float]) -> float:  # noqa: ANN401
        pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
        return max(float(np.abs(a - b).max() / scale(b)) for a, b in pairs)

    relative = np.abs(found.metrics / expected.metrics - 1).max(axis=0)
    values = (
        largest(found.initial, expected.initial, lambda _: 1.0),
        largest(found.rows, expected.rows, lambda _: 1.0),
        float(relative[0]),
        largest(found.gradients, expected.gradients, lambda g: max(float(np.linalg.norm(g)), 1e-6)),
        float(relative[1]),
        largest(found.final, expected.final, lambda _: 1.0),
    )
    return dict(zip(TOLERANCES, values, strict=True))


def describe(parallel: ParallelConfig) -> str:
    """A mesh in a few words."""
    parts = [f"{parallel.pipe} pipe x {parallel.data} data x {parallel.model} model"]
    if parallel.pipe > 1:
        parts.append(f"{parallel.schedule}, {parallel.interleave} chunk(s)")
    if parallel.sequence:
        parts.append("sequence")
    if parallel.zero:
        parts.append("zero 1")
    return ", ".join(parts)


def table(verdict: Verdict) -> Table:
    """One mesh for a person."""
    rows = Table(title=f"{describe(verdict.parallel)}, against one device")
    for column in ("quantity", "largest difference", "allowed", "verdict"):
        rows.add_column(column, justify="left" if column == "quantity" else "right")
    for name, limit in TOLERANCES.items():
        found = verdict.differences[name]
        rows.add_row(name, f"{found:.2g}", f"{limit:.2g}", "equal" if found <= limit else "DIFFERS")
    return rows
