"""XLA:CPU's flags one by one: time of the training step over that without the flag, as JSON.

    uv run python benchmarks/flags.py [float32 | bfloat16 ...]      (default: both)

Programs take turns, so that what else the machine does falls on all of them.
"""

import json
import sys
import time
from typing import Any

import jax
from step_profile import step_and_arguments

FLAGS: dict[str, dict[str, Any]] = {
    "fast math": {"xla_cpu_enable_fast_math": True},
    "vectors of 512 bits": {"xla_cpu_prefer_vector_width": 512},
    "concurrent scheduler": {"xla_cpu_enable_concurrency_optimized_scheduler": True},
    "one codegen part": {"xla_cpu_parallel_codegen_split_count": 1},
    "new tiling": {"xla_cpu_use_new_xtile_lowering": True},
    "fast min and max": {"xla_cpu_enable_fast_min_max": True},
    "oneDNN": {"xla_cpu_use_onednn": True},
    "XNNPACK": {"xla_cpu_use_xnnpack": True},
}
ROUNDS = 4


def measure(dtype: str) -> dict[str, float | str]:
    """Seconds of the step without flags, and the ratio with each; or why there is none."""
    step, state, batch = step_and_arguments(dtype)
    lowered = step.lower(state, batch)
    programs = {"none": lowered.compile()}
    ratios: dict[str, float | str] = {}
    for name, options in FLAGS.items():
        try:
            programs[name] = lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            ratios[name] = str(error).splitlines()[0]
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(1 + ROUNDS):
        for name, program in programs.items():
            started = time.perf_counter()
            state, _ = jax.block_until_ready(program(state, batch))
            seconds[name].append(time.perf_counter() - started)
    best = {name: min(times[1:]) for name, times in seconds.items()}
    ratios |= {name: round(best[name] / best["none"], 3) for name in best if name != "none"}
    return {"step_seconds": best["none"], **ratios}


if __name__ == "__main__":
    for dtype in sys.argv[1:] or ("float32", "bfloat16"):
        print(json.dumps({dtype: measure(dtype)}, indent=1), flush=True)
