"""One GPU: MFU, step time and memory of the GPT-2 sizes against a roofline, as JSON lines.

    python benchmarks/gpu.py [SIZE ...]      (default: small medium xl; tiny runs on a CPU)

Needs neither Ray nor Grain. For each size the largest batch (a power of two) that the planner says
fits is trained for a few steps in bfloat16; the planner's time with this device's own rates is the
roofline. First, losses of a small model in float32 and bfloat16 are compared with a CPU's.
"""

import json
import math
import os
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from minigpt.bench import device_rates
from minigpt.config import ClusterConfig, Config, ModelConfig, ParallelConfig, TrainConfig
from minigpt.data.batches import Batch
from minigpt.model.flops import train_flops_per_token
from minigpt.model.sizes import padded_vocabulary
from minigpt.parallel.sharding import BATCH
from minigpt.plan.clusters import Cluster, Rates
from minigpt.plan.cost import step_time
from minigpt.plan.memory import step_memory
from minigpt.train.hardware import peak_flops
from minigpt.train.optimizer import make_optimizer
from minigpt.train.state import StateLayout, init_state, model_spec
from minigpt.train.step import make_train_step

VOCAB = 50257
SIZES = {
    "tiny": ModelConfig(num_layers=2, num_heads=2, embed_dim=128, seq_length=128),
    "small": ModelConfig(num_layers=12, num_heads=12, embed_dim=768, seq_length=1024),
    "medium": ModelConfig(num_layers=24, num_heads=16, embed_dim=1024, seq_length=1024),
    "xl": ModelConfig(num_layers=48, num_heads=25, embed_dim=1600, seq_length=1024),
}
CHECKED = ModelConfig(num_layers=4, num_heads=4, embed_dim=256, seq_length=256)
STEPS = 8
ONE = (1, 1, 1)


def config_of(model: ModelConfig, rows: int, dtype: str) -> Config:
    """One device; what the planner knows of its kind."""
    platform = "cuda" if jax.default_backend() == "gpu" else "cpu"
    return Config(
        model=model,
        train=TrainConfig(global_batch_size=rows, compute_dtype=dtype, steps=100),  # pyright: ignore[reportArgumentType]
        parallel=ParallelConfig(data=1),
        cluster=ClusterConfig(platform=platform),
    )


def train(config: Config, steps: int) -> tuple[list[float], list[float], Any, float]:
    """Losses and seconds of steps on random rows, XLA's memory analysis, seconds to compile."""
    layout, spec = StateLayout.of(config.parallel), model_spec(config, VOCAB)
    state = init_state(spec, make_optimizer(config.optimizer, config.train.steps), 0, layout)
    rows, row = config.train.global_batch_size, config.model.seq_length + 1
    tokens = np.random.default_rng(0).integers(0, VOCAB, (rows, row), np.int32)
    batch = Batch(jnp.asarray(tokens), jnp.full((rows,), row, jnp.int32))
    batch = jax.device_put(batch, NamedSharding(layout.mesh, BATCH))
    started = time.perf_counter()
    step = make_train_step(config, spec, layout).lower(state, batch).compile()
    compiled = time.perf_counter() - started
    losses: list[float] = []
    seconds: list[float] = []
    for _ in range(steps):
        started = time.perf_counter()
        state, metrics = step(state, batch)
        losses.append(float(metrics.loss))  # waits
        seconds.append(time.perf_counter() - started)
    return losses, seconds, step.memory_analysis(), compiled


def check_losses() -> dict[str, list[float]]:
    """Losses of ten steps of a small model by dtype, on jax's own device."""
    return {dtype: train(config_of(CHECKED, 8, dtype), 10)[0] for dtype in ("float32", "bfloat16")}


def compare_with_cpu() -> dict[str, float]:
    """Largest relative difference of the losses from those of a CPU, by dtype."""
    command = [sys.executable, __file__, "--losses"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    cpu = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    expected = json.loads(cpu.stdout)
    return {
        dtype: max(abs(a / b - 1) for a, b in zip(losses, expected[dtype], strict=True))
        for dtype, losses in check_losses().items()
    }


def measured_cluster() -> Cluster:
    """This device, with the rates that it reaches."""
    device = jax.devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit", 8 * 2**30)
    matrix_flops, memory_bandwidth = device_rates("bfloat16")
    return Cluster(
        name=device.device_kind,
        platform="cuda" if device.platform == "gpu" else device.platform,
        device_memory=limit,
        matrix_flops=Rates(bfloat16=matrix_flops),
        memory_bandwidth=memory_bandwidth,
    )


def largest_batch(model: ModelConfig, cluster: Cluster) -> int:
    """The most rows, a power of two up to 256, that fit by the planner's count."""

    def fits(rows: int) -> bool:
        needed = step_memory(config_of(model, rows, "bfloat16"), ONE, padded_vocabulary(VOCAB))
        return needed.total <= 0.9 * cluster.device_memory

    return max((2**power for power in range(9) if fits(2**power)), default=1)


def measure(name: str, cluster: Cluster) -> dict[str, Any]:
    """One size."""
    model = SIZES[name]
    config = config_of(model, largest_batch(model, cluster), "bfloat16")
    padded = padded_vocabulary(VOCAB)
    losses, seconds, analysis, compiled = train(config, STEPS)
    best = min(seconds[2:])
    tokens = config.train.global_batch_size * model.seq_length
    flops = train_flops_per_token(model, VOCAB) * tokens
    peak, source = peak_flops(None, "bfloat16")
    stats = jax.devices()[0].memory_stats() or {}
    roofline = step_time(config, ONE, padded, cluster)
    return {
        "size": name,
        "rows": config.train.global_batch_size,
        "compile_seconds": compiled,
        "step_seconds": best,
        "tokens_per_second": tokens / best,
        "model_teraflops": flops / best / 1e12,
        "mfu": None if peak is None else flops / best / peak,
        "peak": source,
        "roofline_seconds": roofline.total,
        "share_of_roofline": roofline.total / best,
        "planned_gib": step_memory(config, ONE, padded).total / 2**30,
        "compiled_gib": (analysis.argument_size_in_bytes + analysis.temp_size_in_bytes) / 2**30,
        "peak_gib_in_use": stats.get("peak_bytes_in_use", math.nan) / 2**30,
        "losses": losses,
    }


def main(names: list[str]) -> None:
    """All of it; sizes one after the other, so that a time limit costs the last ones only."""
    cluster = measured_cluster()
    print(json.dumps({"device": cluster.name, "jax": jax.__version__}), flush=True)
    rates = {"matrix_flops": cluster.matrix_flops.bfloat16, "bandwidth": cluster.memory_bandwidth}
    print(json.dumps(rates), flush=True)
    print(json.dumps({"losses against a CPU": compare_with_cpu()}), flush=True)
    for name in names:
        print(json.dumps(measure(name, cluster)), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--losses"]:
        print(json.dumps(check_losses()))
    else:
        main(sys.argv[1:] or ["small", "medium", "xl"])
