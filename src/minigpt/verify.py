"""Proves a mesh: the same small training on one device and on the mesh, compared."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
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
from minigpt.parallel.mesh import mesh_shape
from minigpt.parallel.sharding import BATCH
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


class _Evidence(NamedTuple):
    initial: Any
    rows: list[np.ndarray]
    metrics: np.ndarray
    gradients: Any
    final: Any


def verify(
    meshes: list[ParallelConfig], *, steps: int, dropout: float, notify: Callable[[Verdict], None]
) -> list[Verdict]:
    """Train on one device and on each mesh, and compare; ``notify`` is told each verdict.

    The model is small, and the same for all meshes: layers, heads, positions and rows that all of
    them divide.

    Raises:
        ConfigError: a mesh does not fit the devices.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = _small_config(meshes, Path(folder), steps, dropout)
        expected = _train(config)
        verdicts: list[Verdict] = []
        for parallel in meshes:
            found = _train(replace(config, parallel=parallel))
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
    """One device's configuration that every mesh divides."""
    layers = int(np.lcm.reduce([mesh.pipe * mesh.interleave for mesh in meshes]))
    peers = [mesh.model for mesh in meshes]
    heads = int(np.lcm.reduce([4, *peers]))
    groups = [mesh.microbatches * mesh_shape(mesh, jax.device_count())[1] for mesh in meshes]
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


def _train(config: Config) -> _Evidence:
    """A few steps, and everything there is to compare, as on one device."""
    layout = StateLayout.of(config.parallel)
    spec = model_spec(config, ByteTokenizer.vocab_size)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    state = init_state(spec, optimizer, config.train.seed, layout)
    step = make_train_step(config, spec, layout)
    store, _ = open_or_build(config, lambda done, total: None)
    reader = BatchReader(
        store=store, batch_size=config.train.global_batch_size, seed=config.train.seed, shuffle=True
    )

    def host(params: Any) -> Any:  # noqa: ANN401 - a tree of parameters
        return jax.tree.map(np.asarray, layout.save(params))

    initial, gradients = host(state.params), None
    rows: list[np.ndarray] = []
    metrics: list[list[float]] = []
    for number, batch in enumerate(reader.batches(0, config.train.steps)):
        placed = jax.device_put(batch, NamedSharding(layout.mesh, BATCH))
        rows.append(np.asarray(placed.tokens))
        if number == 0:
            model = ParallelModel(config, spec, layout)
            gradients = host(jax.jit(model.gradients)(state.params, placed, state.step)[0])
        state, latest = step(state, placed)
        metrics.append([float(latest.loss), float(latest.grad_norm)])
    return _Evidence(initial, rows, np.array(metrics), gradients, host(state.params))


def _differences(found: _Evidence, expected: _Evidence) -> dict[str, float]:
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
