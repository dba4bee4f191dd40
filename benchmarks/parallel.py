"""What parallelism costs: memory, traffic, bubbles and overhead of meshes, as JSON.

    uv run python benchmarks/parallel.py [NAME ...]      (default: all)

Devices are 8 virtual ones that share this machine's cores, so times are good for ratios within a
run only. Memory and traffic are read from compiled programs, and do not depend on the machine.
"""

import json
import sys
import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from minigpt.bench import best_seconds
from minigpt.config import Config, ModelConfig, ParallelConfig, TrainConfig
from minigpt.data.batches import Batch
from minigpt.parallel.pipeline import conditions
from minigpt.parallel.schedule import Schedule
from minigpt.parallel.sharding import BATCH
from minigpt.plan.check import compile_step
from minigpt.plan.hlo import collectives
from minigpt.plan.traffic import step_traffic
from minigpt.train.optimizer import make_optimizer
from minigpt.train.state import StateLayout, init_state, model_spec
from minigpt.train.step import make_train_step

VOCAB = 50257
SMALL = ModelConfig(num_layers=8, num_heads=8, embed_dim=128, seq_length=128)
LARGE = ModelConfig(num_layers=24, num_heads=16, embed_dim=1024, seq_length=1024)
MESHES = ((1, 1, 1), (1, 1, 8), (1, 8, 1), (8, 1, 1), (2, 2, 2))


def config_of(
    shape: tuple[int, int, int],
    model: ModelConfig,
    rows: int,
    **parallel: Any,  # noqa: ANN401
) -> Config:
    """A configuration of a mesh."""
    pipe, data, tensor = shape
    mesh = ParallelConfig(pipe=pipe, data=data, model=tensor, **parallel)
    return Config(model=model, parallel=mesh, train=TrainConfig(global_batch_size=rows))


def _memory(config: Config) -> Any:  # noqa: ANN401 - XLA's analysis
    analysis = compile_step(config, VOCAB).memory_analysis()
    assert analysis is not None
    return analysis


def activations() -> dict[str, dict[int, float]]:
    """MiB of temporaries of one device for 4 to 32 microbatches of 2 rows on 4 stages."""
    kinds: dict[str, dict[str, Any]] = {
        "gpipe": {"schedule": "gpipe"},
        "gpipe, remat": {"schedule": "gpipe", "remat": "layer"},
        "1f1b": {},
        "1f1b, remat": {"remat": "layer"},
        "1f1b, 2 chunks": {"interleave": 2},
    }
    found: dict[str, dict[int, float]] = {}
    for name, parallel in kinds.items():
        found[name] = {}
        for m in (4, 8, 16, 32):
            config = config_of((4, 1, 1), SMALL, 2 * m, microbatches=m, **parallel)
            found[name][m] = _memory(config).temp_size_in_bytes / 2**20
    return found


def traffic() -> dict[str, Any]:
    """Collectives of one step, counted in the program and by formula."""
    found: dict[str, Any] = {}
    for shape in MESHES[1:]:
        microbatches = 8 if shape[0] == 8 else 4 // shape[1] or 1
        config = config_of(shape, SMALL, 16, microbatches=microbatches)
        program = compile_step(config, VOCAB).as_text()
        counts = collectives(program, shape, condition_holds=conditions(microbatches, 1))
        expected = step_traffic(config, shape, model_spec(config, VOCAB).padded_vocab_size)
        found[_name(shape)] = {
            "equals the formula": counts == expected,
            "collectives": {
                f"{c.kind} over {' and '.join(c.axes)}, {c.num_bytes:,} bytes": n
                for c, n in sorted(counts.items())
            },
        }
    return found


def interleaving() -> dict[str, Any]:
    """Ticks, ideal bubble and step time by chunks of a stage: 4 stages, 8 microbatches."""
    found: dict[str, Any] = {}
    model = replace(SMALL, num_layers=16)
    for chunks in (1, 2, 4):
        schedule = Schedule("1f1b", 4, chunks, 8)
        config = config_of((4, 1, 1), model, 16, microbatches=8, interleave=chunks)
        found[str(chunks)] = {
            "ticks": schedule.num_ticks,
            "bubble": schedule.bubble,
            "step_seconds": _step_seconds(config),
        }
    return found


def compile_time() -> dict[str, float]:
    """Seconds to trace and compile the step on 2 x 2 x 2, by depth."""
    found: dict[str, float] = {}
    for layers in (4, 24):
        config = config_of((2, 2, 2), replace(SMALL, num_layers=layers), 16, microbatches=4)
        started = time.perf_counter()
        compile_step(config, VOCAB)
        found[f"{layers} layers"] = time.perf_counter() - started
    return found


def overhead() -> dict[str, Any]:
    """Step time of 2, 4 and 8 devices against one device doing the same work on the same cores."""
    model = ModelConfig(num_layers=8, num_heads=8, embed_dim=256, seq_length=256)
    meshes = [
        ((1, 1, 1), {}),
        *(((1, n, 1), {}) for n in (2, 4, 8)),
        *(((1, 1, n), {}) for n in (2, 4, 8)),
        ((1, 1, 8), {"sequence": True}),
        *(((n, 1, 1), {}) for n in (2, 4, 8)),
        ((2, 2, 2), {}),
    ]
    found: dict[str, Any] = {}
    for shape, parallel in meshes:
        microbatches = {1: 1, 2: 4, 4: 8, 8: 16}[shape[0]]
        config = config_of(shape, model, 16, microbatches=microbatches, **parallel)
        found[_name(shape) + ", sequence" * bool(parallel)] = _step_seconds(config)
    one = found[_name((1, 1, 1))]
    return {name: {"step_seconds": s, "ratio": s / one} for name, s in found.items()}


def memory() -> dict[str, Any]:
    """MiB of one device for 24 layers x 1024 x 1024, batch 8, compiled only."""
    found: dict[str, Any] = {}
    meshes: list[tuple[tuple[int, int, int], dict[str, Any]]] = [
        *((shape, {}) for shape in MESHES),
        ((1, 8, 1), {"zero": 1}),
        ((8, 1, 1), {"remat": "layer"}),
        ((2, 2, 2), {"remat": "layer"}),
    ]
    for shape, parallel in meshes:
        microbatches = {1: 1, 2: 4, 8: 8}[shape[0]]
        config = config_of(shape, LARGE, 8, microbatches=microbatches, **parallel)
        analysis = _memory(config)
        name = ", ".join([_name(shape), *(f"{k} {v}" for k, v in parallel.items())])
        found[name] = {
            "arguments_mib": analysis.argument_size_in_bytes / 2**20,
            "temporaries_mib": analysis.temp_size_in_bytes / 2**20,
        }
    return found


def _step_seconds(config: Config) -> float:
    layout = StateLayout.of(config.parallel)
    spec = model_spec(config, VOCAB)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    holder = [init_state(spec, optimizer, 0, layout)]
    rows, row = config.train.global_batch_size, config.model.seq_length + 1
    tokens = jax.random.randint(jax.random.key(0), (rows, row), 0, VOCAB)
    batch = jax.device_put(
        Batch(tokens, jnp.full((rows,), row, jnp.int32)), NamedSharding(layout.mesh, BATCH)
    )
    step = make_train_step(config, spec, layout)

    def run() -> Any:  # noqa: ANN401
        holder[0], metrics = step(holder[0], batch)
        return metrics

    run()
    return best_seconds(run, repeats=5)


def _name(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))


FIGURES = {
    "activations": activations,
    "traffic": traffic,
    "interleaving": interleaving,
    "compile_time": compile_time,
    "overhead": overhead,
    "memory": memory,
}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    for name in sys.argv[1:] or FIGURES:
        print(json.dumps({name: FIGURES[name]()}, indent=1), flush=True)
