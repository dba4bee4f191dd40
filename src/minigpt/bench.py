"""Measures a training step against this machine's own matrix products."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.table import Table

from minigpt.config import Config
from minigpt.data.batches import Batch
from minigpt.data.tokenizer import load_tokenizer
from minigpt.model.flops import num_parameters, train_flops_per_token
from minigpt.parallel.mesh import use_virtual_devices
from minigpt.parallel.sharding import BATCH
from minigpt.train.optimizer import make_optimizer
from minigpt.train.state import StateLayout, init_state, model_spec
from minigpt.train.step import make_train_step

MATMUL_SIZES = (1024, 2048)
ELEMENTS = 2**22
REPEATS = 5
_ACCELERATOR_MATMUL_SIZE = 8192
_ACCELERATOR_ELEMENTS = 2**26
_PASSES = 8


def bench(config: Config) -> dict[str, Any]:
    """Tokens/s and model FLOP/s of the whole step, and their ratio to the best matrix product.

    The best of a few repetitions is taken for both: other processes only ever add time.
    """
    use_virtual_devices(config.parallel)
    spec = model_spec(config, load_tokenizer(config.data.tokenizer).vocab_size)
    rate = max(matmul_flops_per_second(config.train.compute_dtype).values())
    device_flops, device_bytes = device_rates(config.train.compute_dtype)
    layout = StateLayout.of(config.parallel)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    state = init_state(spec, optimizer, config.train.seed, layout)
    num_rows, row = config.train.global_batch_size, config.model.seq_length + 1
    tokens = np.random.default_rng(0).integers(0, spec.vocab_size, (num_rows, row), np.int32)
    batch = jax.device_put(
        Batch(tokens, np.full(num_rows, row, np.int32)), NamedSharding(layout.mesh, BATCH)
    )

    started = time.perf_counter()
    step = make_train_step(config, spec, layout).lower(state, batch).compile()
    compile_seconds = time.perf_counter() - started
    seconds: list[float] = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - started)
    best = min(seconds[1:])

    num_tokens = num_rows * config.model.seq_length
    flops = train_flops_per_token(config.model, spec.vocab_size) * num_tokens
    memory, device = step.memory_analysis(), jax.devices()[0]
    assert memory is not None, "every backend of jax 0.11 to 0.12 has it"
    return {
        "device": device.device_kind,
        "platform": {"gpu": "cuda"}.get(device.platform, device.platform),
        "device_memory_bytes": _device_memory(device),
        "mesh": layout.mesh.devices.shape,
        "jax": jax.__version__,
        "compute_dtype": config.train.compute_dtype,
        "num_parameters": num_parameters(config.model, spec.vocab_size),
        "tokens_per_step": num_tokens,
        "flops_per_step": flops,
        "compile_seconds": compile_seconds,
        "step_seconds": best,
        "tokens_per_second": num_tokens / best,
        "model_flops_per_second": flops / best,
        "matmul_flops_per_second": rate,
        "device_matmul_flops_per_second": device_flops,
        "device_elementwise_bytes_per_second": device_bytes,
        "ratio_to_matmul": flops / best / rate,
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
    }


def _device_memory(device: Any) -> int:  # noqa: ANN401 - jax.Device is a variable
    """Its own memory, or the machine's, shared by the devices that are in it."""
    limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform != "cpu" else None
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine // jax.local_device_count() if limit is None else limit


def matmul_flops_per_second(dtype: str) -> dict[int, float]:
    """FLOP/s of a square product ``a @ b.T`` for each of ``MATMUL_SIZES``."""
    rates: dict[int, float] = {}
    for size in MATMUL_SIZES:
        operand = jax.random.normal(jax.random.key(0), (size, size)).astype(jnp.dtype(dtype))
        product = jax.jit(lambda a, b: jnp.einsum("ik,jk->ij", a, b))
        rates[size] = 2 * size**3 / best_seconds(product, operand, operand)
    return rates


def device_rates(dtype: str) -> tuple[float, float]:
    """What one device reaches while all devices of this process work.

    Returns:
        FLOP/s of a square product, and bytes/s that one operation on each element, an exponential,
        reads and writes of an array that stays where it is.
    """
    devices = np.array(jax.local_devices())
    on_cpu = devices[0].platform == "cpu"
    sharding = NamedSharding(Mesh(devices, ("device",)), PartitionSpec("device"))

    def draw(*dims: int, dtype: str = "float32") -> jax.Array:
        shape = (len(devices), *dims)
        normal = jax.jit(lambda: jax.random.normal(jax.random.key(0), shape).astype(dtype))
        return jax.device_put(normal(), sharding)

    size = MATMUL_SIZES[-1] if on_cpu else _ACCELERATOR_MATMUL_SIZE
    operand = draw(size, size, dtype=dtype)
    product = jax.jit(lambda a: jnp.einsum("nik,njk->nij", a, a), out_shardings=sharding)
    flops = 2 * size**3 / best_seconds(product, operand, repeats=5)

    x = draw(ELEMENTS if on_cpu else _ACCELERATOR_ELEMENTS)

    def passes(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, _PASSES, lambda _, x: jnp.exp(-jnp.abs(x)), x)

    seconds = best_seconds(jax.jit(passes, out_shardings=sharding), x, repeats=5)
    return flops, _PASSES * 2 * x.nbytes / len(devices) / seconds


def best_seconds(function: Callable[..., Any], *arguments: Any, repeats: int = 10) -> float:  # noqa: ANN401
    """Shortest time of a call, after one that compiles."""
    jax.block_until_ready(function(*arguments))
    seconds: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def table(result: dict[str, Any]) -> Table:
    """The result for a person."""
    rows = Table(title=f"training step, {result['compute_dtype']}, {result['device']}")
    rows.add_column("measure")
    rows.add_column("value", justify="right")
    for name, value in (
        ("parameters", f"{result['num_parameters']:,}"),
        ("compile", f"{result['compile_seconds']:.1f} s"),
        ("step", f"{1e3 * result['step_seconds']:,.0f} ms"),
        ("tokens/s", f"{result['tokens_per_second']:,.0f}"),
        ("model FLOP/s", f"{result['model_flops_per_second'] / 1e9:,.1f} GFLOP/s"),
        ("matrix product", f"{result['matmul_flops_per_second'] / 1e9:,.1f} GFLOP/s"),
        (
            "elementwise, a device",
            f"{result['device_elementwise_bytes_per_second'] / 1e9:,.1f} GB/s",
        ),
        ("ratio", f"{100 * result['ratio_to_matmul']:.1f} %"),
        ("memory: arguments", f"{result['argument_bytes'] / 2**20:,.0f} MiB"),
        ("memory: temporaries", f"{result['temporary_bytes'] / 2**20:,.0f} MiB"),
    ):
        rows.add_row(name, value)
    return rows
