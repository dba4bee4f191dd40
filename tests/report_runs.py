"""Run directories with times and losses that a test chooses."""

import json
from dataclasses import asdict

from tiny import tiny_config

from minigpt.train.record import Record
from minigpt.train.run_directory import RunDirectory

DATA = {"builtin": "0123abcd", "seed": 0, "num_stories": 60}

FACTS = {
    "num_parameters": 1_234_567,
    "flops_per_token": 9000,
    "peak_flops": 4e12,
    "platform": "gpu",
    "device_kind": "NVIDIA T4",
    "processor": "x86_64",
    "num_devices": 4,
    "num_processes": 2,
    "num_nodes": 2,
    "mesh": {"pipe": 2, "data": 1, "model": 2},
    "device_names": ["0:0", "0:1", "1:0", "1:1"],
    "system": "Linux",
    "versions": {"jax": "0.12.0", "minigpt": "0.1.0"},
}


class Attempt:
    """Events of one attempt, on a clock that each of them moves on."""

    def __init__(self, launched, *, launcher="local", start=None):
        self.now = launched
        self.lines = []
        self.spend(0.0 if start is None else start - launched, "start", launcher=launcher)
        self.lines[-1]["launched"] = launched

    def spend(self, seconds, kind, /, **fields):
        self.now += seconds
        self.lines.append({"time": self.now, "kind": kind, **fields})
        return self

    def ready(self, step, seconds=4.0, **facts):
        return self.spend(seconds, "ready", step=step, **(FACTS | facts))

    def pause(self, kind, step, seconds, **fields):
        return self.spend(seconds, kind, step=step, seconds=seconds, **fields)

    def compile(self, step, seconds=3.0):
        self.pause("first_batch", step, 0.5)
        sizes = {"argument_bytes": 3 * 2**20, "temporary_bytes": 2**30}
        return self.pause("compile", step, seconds, **sizes)

    def steps(self, last, num, seconds, waited=0.25):
        fields = {"tokens": 100 * num, "step_seconds": seconds, "data_seconds": waited}
        return self.spend(seconds, "steps", step=last, steps=num, **fields)

    def end(self, reason, seconds=0.0):
        return self.spend(seconds, "end", reason=reason)


def usual_attempt(launched=1000.0):
    """Twenty steps with an evaluation at 0, 10 and 20; 35.75 s, of which 1.25 s are of no kind."""
    return (
        Attempt(launched)
        .ready(0)
        .pause("evaluation", 0, 2.0)
        .pause("samples", 0, 1.0)
        .compile(0)
        .steps(5, 5, 5.0)
        .steps(10, 5, 5.0)
        .pause("evaluation", 10, 1.0)
        .pause("checkpoint", 10, 0.5)
        .steps(15, 5, 5.0)
        .steps(20, 5, 5.0)
        .pause("evaluation", 20, 1.0)
        .pause("samples", 20, 1.0)
        .pause("checkpoint", 20, 0.5)
        .end("steps", 1.25)
    )


def usual_records(losses=(6.0, 4.0, 3.0)):
    """Of ``usual_attempt``: validation losses as given, training losses half a nat below."""
    val = [
        Record(step=10 * n, split="val", loss=loss, tokens=1000 * n, elapsed_seconds=11.0 * n + 1)
        for n, loss in enumerate(losses)
    ]
    train = [
        Record(
            step=step,
            split="train",
            loss=losses[min(len(losses) - 1, step // 10)] - 0.5,
            learning_rate=1e-3 / step,
            grad_norm=1.5,
            tokens=100 * step,
            tokens_per_second=100.0 + step,
            mfu=0.25,
            step_seconds=1.0,
            data_seconds=0.05,
            elapsed_seconds=6.5 + step,
        )
        for step in (5, 10, 15, 20)
    ]
    return [*val, *train]


def write_run(
    folder, name="one", *, attempts=None, records=None, samples=None, data=DATA, **groups
):
    """A run directory; ``groups`` are fields of its configuration."""
    groups["run"] = {"name": name, **groups.get("run", {})}
    config = tiny_config(folder, **groups)
    directory = RunDirectory.of(config)
    directory.write_config(config, data)
    if attempts is None:
        attempts = [usual_attempt()]
    if samples is None:
        samples = [
            (step, prompt, f" text {step}") for step in (0, 20) for prompt in ("Once", "One day")
        ]
    lines = {
        "metrics": [asdict(record) for record in records or usual_records()],
        "samples": [dict(zip(("step", "prompt", "text"), s, strict=True)) for s in samples],
        "events": [line for attempt in attempts for line in attempt.lines],
    }
    for file, objects in lines.items():
        if objects:
            text = "".join(json.dumps(line) + "\n" for line in objects)
            (directory.path / f"{file}.jsonl").write_text(text, encoding="utf-8")
    return directory.path
