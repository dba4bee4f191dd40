"""Where the time of a training step goes, by part of the model and kind of operation, as JSON.

    uv run python benchmarks/step_profile.py [float32 | bfloat16 ...]      (default: both)

Times are those that the JAX profiler records for each operation of the compiled step, on one
device; operations are told apart by the source lines that XLA keeps for them.
"""

import json
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from minigpt.config import Config, ModelConfig, TrainConfig
from minigpt.data.batches import Batch
from minigpt.parallel.mesh import make_mesh
from minigpt.train.optimizer import make_optimizer
from minigpt.train.state import StateLayout, init_state, model_spec
from minigpt.train.step import make_train_step

STEP = ModelConfig(num_layers=6, num_heads=6, embed_dim=384, seq_length=256)
VOCAB, STEPS = 50257, 3

PARTS = {
    ("loss.py", "_backward"): "cross-entropy, backward",
    ("loss.py", ""): "cross-entropy, forward",
    ("attention.py", "_backward"): "attention, backward",
    ("attention.py", ""): "attention, forward",
    ("pointwise.py", "gelu"): "GELU",
    ("pointwise.py", ""): "normalisation",
    ("dropout.py", ""): "dropout",
    ("gpt.py", "embed"): "embedding",
    ("gpt.py", "first_hidden"): "embedding",
    ("gpt.py", ""): "projections of the layers",
    ("peers.py", ""): "projections of the layers",
    ("step.py", ""): "clipping and optimizer",
    ("gradients.py", ""): "norm and mean of gradients",
    ("pipeline.py", ""): "adding up gradients",
}
"""Part of the step by file and function, the innermost frame first; "" is any function."""


def profile(dtype: str) -> dict[str, Any]:
    """Milliseconds of a step by part and kind, and what share of the whole they explain."""
    train = TrainConfig(global_batch_size=8, compute_dtype=dtype)  # pyright: ignore[reportArgumentType]
    config = Config(model=STEP, train=train)
    layout = StateLayout(make_mesh((1, 1, 1)), interleave=1, zero=False)
    spec = model_spec(config, VOCAB)
    state = init_state(spec, make_optimizer(config.optimizer, config.train.steps), 0, layout)
    tokens = np.random.default_rng(0).integers(0, VOCAB, (8, 257), np.int32)
    batch = jax.device_put(Batch(tokens, np.full(8, 257, np.int32)))
    step = make_train_step(config, spec, layout).lower(state, batch).compile()
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
        own = own_seconds(trace)
    places = Program(text)
    table: Counter[tuple[str, str]] = Counter()
    details: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for name, spent in own.items():
        key = places.part(name), places.kind(name)
        table[key] += spent / STEPS
        details[key][name] += spent / STEPS
    explained = sum(spent for (part, _), spent in table.items() if part != "other")
    return {
        "step_ms": 1e3 * seconds,
        "explained": explained / seconds,
        "parts": [
            {
                "part": part,
                "kind": kind,
                "ms": round(1e3 * spent, 1),
                "share": round(spent / seconds, 3),
                "largest": {
                    name: round(1e3 * ms, 1) for name, ms in details[part, kind].most_common(3)
                },
            }
            for (part, kind), spent in table.most_common()
        ],
    }


def own_seconds(trace: Path) -> Counter[str]:
    """Seconds of each operation without those inside it, as in a loop."""
    spent: Counter[str] = Counter()
    for plane in jax.profiler.ProfileData.from_file(str(trace)).planes:
        for line in plane.lines:
            events = [event for event in line.events if "hlo_op" in dict(event.stats)]
            open_events: list[tuple[float, str]] = []
            for event in sorted(events, key=lambda event: (event.start_ns, -event.duration_ns)):
                while open_events and open_events[-1][0] <= event.start_ns:
                    open_events.pop()
                if open_events:
                    spent[open_events[-1][1]] -= 1e-9 * event.duration_ns
                spent[event.name] += 1e-9 * event.duration_ns
                open_events.append((event.start_ns + event.duration_ns, event.name))
    return spent


class Program:
    """What the text of a compiled program tells of its operations."""

    def __init__(self, text: str) -> None:
        """Of optimised HLO."""
        tables = {
            name: dict(re.findall(r"^(\d+) (.*)$", body, re.MULTILINE))
            for name, body in re.findall(
                r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n((?:\d+ .*\n)+)",
                text,
                re.MULTILINE,
            )
        }
        self._tables = tables
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
        """The part of the step that an operation belongs to."""
        for line in (self._lines.get(name, ""), *reversed(self._inside(name))):
            for file, function in self._frames(line):
                for (known, prefix), part in PARTS.items():
                    if file == known and prefix in function:
                        return part
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

    def _frames(self, line: str) -> list[tuple[str, str]]:
        """File and function of each frame, the innermost first."""
        match = re.search(r"stack_frame_id=(\d+)", line)
        frame, found = match[1] if match else "", []
        while frame in self._tables["StackFrames"]:
            entry = self._tables["StackFrames"][frame]
            location = self._tables["FileLocations"][_field(entry, "file_location_id")]
            file = self._tables["FileNames"][_field(location, "file_name_id")].strip('"')
            function = self._tables["FunctionNames"][_field(location, "function_name_id")]
            found.append((file.rsplit("/", 1)[-1], function.strip('"')))
            parent = _field(entry, "parent_frame_id")
            frame = parent if parent != frame else ""
        return found


def _field(entry: str, name: str) -> str:
    match = re.search(rf"{name}=(\d+)", entry)
    return match[1] if match else ""


if __name__ == "__main__":
    for dtype in sys.argv[1:] or ("float32", "bfloat16"):
        print(json.dumps({dtype: profile(dtype)}, indent=1), flush=True)
