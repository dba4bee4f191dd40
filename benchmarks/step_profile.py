"""Where the time of a training step goes, by part of the model and kind of operation, as JSON.

    uv run python benchmarks/step_profile.py [float32 | bfloat16 ...]      (default: both)

Times are those that the JAX profiler records for each operation of the compiled step, on one
device; operations are told apart by the scopes that the model names. Several run at a time.
"""

import json
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from minigpt.config import Config, ModelConfig, TrainConfig
from minigpt.data.batches import Batch
from minigpt.parallel.mesh import make_mesh
from minigpt.train.optimizer import make_optimizer
from minigpt.train.state import StateLayout, TrainState, init_state, model_spec
from minigpt.train.step import make_train_step

STEP = ModelConfig(num_layers=6, num_heads=6, embed_dim=384, seq_length=256)
VOCAB, STEPS = 50257, 3

PARTS = (
    *("cross_entropy", "attention", "normalize", "gelu", "dropout", "projections", "embedding"),
    *("gradient_norm", "optimizer"),
)
"""Scopes that the model and the step name; the innermost counts."""


def step_and_arguments(dtype: str) -> tuple[jax.stages.Wrapped, TrainState, Batch]:
    """The training step of 6 layers x 384 x 256 and 8 rows on one device, and its arguments."""
    train = TrainConfig(global_batch_size=8, compute_dtype=dtype)  # pyright: ignore[reportArgumentType]
    config = Config(model=STEP, train=train)
    layout = StateLayout(make_mesh((1, 1, 1)), interleave=1, zero=False)
    spec = model_spec(config, VOCAB)
    state = init_state(spec, make_optimizer(config.optimizer, config.train.steps), 0, layout)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (8, 257), np.int32)
    batch = jax.device_put(Batch(tokens, np.full(8, 257, np.int32)))
    return make_train_step(config, spec, layout), state, batch


def profile(dtype: str) -> dict[str, Any]:
    """Milliseconds of a step by part and kind, and what share of the whole they explain."""
    jitted, state, batch = step_and_arguments(dtype)
    step = jitted.lower(state, batch).compile()
    text = step.as_text()
    assert text is not None
    for _ in range(2):
        state, _ = jax.block_until_ready(step(state, batch))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            began = time.perf_counter()
            for _ in range(STEPS):
                state, _ = jax.block_until_ready(step(state, batch))
            seconds = (time.perf_counter() - began) / STEPS
        (trace,) = Path(folder).rglob("*.xplane.pb")
        operations = read_operations(trace)
    program = Program(text)
    table: Counter[tuple[str, str]] = Counter()
    largest: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for operation in operations:
        key = program.part(operation.name), program.kind(operation.name)
        table[key] += operation.seconds / STEPS
        largest[key][operation.name] += operation.seconds / STEPS
    total = table.total()
    named = [o for o in operations if program.part(o.name) != "other"]
    return {
        "step_ms": 1e3 * seconds,
        "share of the step in which an operation runs": covered(operations) / STEPS / seconds,
        "share in which one of a named part runs": covered(named) / STEPS / seconds,
        "thread_ms": 1e3 * total,
        "parts": [
            {
                "part": part,
                "kind": kind,
                "thread_ms": round(1e3 * spent, 1),
                "share": round(spent / total, 3),
                "largest": {
                    name: round(1e3 * spent, 1)
                    for name, spent in largest[part, kind].most_common(3)
                },
            }
            for (part, kind), spent in table.most_common()
        ],
    }


class Operation(NamedTuple):
    """One run of an operation, in seconds."""

    name: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return self.end - self.begin


def read_operations(trace: Path) -> list[Operation]:
    """All that the profiler saw, but loops and calls themselves."""
    found: list[Operation] = []
    for plane in jax.profiler.ProfileData.from_file(str(trace)).planes:
        for line in plane.lines:
            found += [
                Operation(
                    event.name, 1e-9 * event.start_ns, 1e-9 * (event.start_ns + event.duration_ns)
                )
                for event in line.events
                if any(name == "hlo_op" for name, _ in event.stats)
                and not event.name.startswith(("while", "call", "conditional"))
            ]
    return found


def covered(operations: list[Operation]) -> float:
    """Seconds in which at least one of them ran."""
    total, until = 0.0, 0.0
    for operation in sorted(operations, key=lambda operation: operation.begin):
        total += max(0.0, operation.end - max(until, operation.begin))
        until = max(until, operation.end)
    return total


class Program:
    """What the text of a compiled program tells of its operations."""

    def __init__(self, text: str) -> None:
        """Of optimised HLO."""
        self._lines: dict[str, str] = {}
        self._bodies: dict[str, list[str]] = {}
        body: list[str] = []
        for line in text.splitlines():
            if header := re.match(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
                body = self._bodies.setdefault(header[1], [])
            elif match := re.match(r"^\s+(?:ROOT )?%?([\w.\-]+) = ", line):
                self._lines[match[1]] = line
                body.append(line)

    def part(self, name: str) -> str:
        """The part of the step that an operation belongs to, forward or backward."""
        for line in (self._lines.get(name, ""), *reversed(self._inside(name))):
            match = re.search(r'op_name="([^"]*)"', line)
            path = match[1] if match else ""
            places = {part: path.rfind(part) for part in PARTS if part in path}
            if places:
                part = max(places, key=lambda part: places[part])
                return f"{part}, backward" if "transpose(" in path else part
        return "other"

    def kind(self, name: str) -> str:
        """Product, elementwise, or one that only moves data."""
        lines = [self._lines.get(name, ""), *self._inside(name)]
        opcodes = {match[1] for line in lines if (match := re.search(r"[\]})] ([a-z\-]+)\(", line))}
        if "dot" in opcodes:
            return "product"
        if opcodes & {"scatter", "gather"}:
            return "gather or scatter"
        moving = {"copy", "transpose", "bitcast", "fusion", "parameter", "convert", "call"}
        return "moving and casts" if opcodes <= moving else "elementwise"

    def _inside(self, name: str) -> list[str]:
        called = re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", self._lines.get(name, ""))
        found: list[str] = []
        for line in self._bodies.get(called[1], []) if called else []:
            found.append(line)
            if inner := re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", line):
                found += self._bodies.get(inner[1], [])
        return found


if __name__ == "__main__":
    for dtype in sys.argv[1:] or ("float32", "bfloat16"):
        print(json.dumps({dtype: profile(dtype)}, indent=1), flush=True)
