"""Killed and resumed equals uninterrupted, through the command that users run."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from minigpt.cli import main
from minigpt.data.stories import corpus

OPTIONS = [
    *("--parallel.data", "1", "--data.tokenizer", "byte"),
    *("--model.num-layers", "2", "--model.num-heads", "2"),
    *("--model.embed-dim", "16", "--model.seq-length", "32", "--model.dropout", "0.1"),
    *(
        "--parallel.data",
        "1",
        "--train.global-batch-size",
        "8",
        "--train.log-every",
        "1",
        "--train.eval-every",
        "15",
    ),
    *("--train.eval-rows", "16", "--train.sample-every", "0", "--checkpoint.every", "10"),
]


def arguments(tmp_path, name, steps):
    data = tmp_path / "stories.txt"
    if not data.exists():
        data.write_text("".join(corpus(0, 60)))
    return [
        *("train", "--run.directory", str(tmp_path / "runs"), "--run.name", name),
        *("--data.path", str(data), "--train.steps", str(steps), *OPTIONS),
    ]


def records(tmp_path, name):
    """(step, split, loss, grad_norm, tokens) of every line; no step may stand twice."""
    lines = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    rows = [(r["step"], r["split"], r["loss"], r.get("grad_norm"), r["tokens"]) for r in found]
    assert len({row[:2] for row in rows}) == len(rows)
    return rows


def start(tmp_path, name, steps):
    command = [sys.executable, "-m", "minigpt", *arguments(tmp_path, name, steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_step(tmp_path, name, step):
    path = tmp_path / "runs" / name / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if path.exists() and f'"step": {step},' in path.read_text():
            return
        time.sleep(0.005)
    raise AssertionError(f"step {step} was not reached")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("uninterrupted")
    assert main(arguments(tmp_path, "whole", 60)) == 0
    return records(tmp_path, "whole")


def test_sigkill_in_mid_run(tmp_path, uninterrupted):
    process = start(tmp_path, "killed", 60)
    wait_for_step(tmp_path, "killed", 23)
    process.kill()
    process.communicate()
    assert main(arguments(tmp_path, "killed", 60)) == 0
    assert records(tmp_path, "killed") == uninterrupted


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_the_run_continues(tmp_path, uninterrupted, number, code):
    process = start(tmp_path, "stopped", 60)
    wait_for_step(tmp_path, "stopped", 13)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in output
    assert f"stopped by {number.name} after step" in output
    step = max(int(p) for p in os.listdir(tmp_path / "runs/stopped/checkpoints") if p.isdigit())
    assert 13 <= step < 60
    assert main(arguments(tmp_path, "stopped", 60)) == 0
    assert records(tmp_path, "stopped") == uninterrupted


def test_a_signal_before_the_first_step_saves_too(tmp_path, uninterrupted):
    """It arrives while the step compiles."""
    process = start(tmp_path, "early", 60)
    path = tmp_path / "runs" / "early" / "metrics.jsonl"
    while not path.exists():
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert os.listdir(tmp_path / "runs/early/checkpoints")
    assert main(arguments(tmp_path, "early", 60)) == 0
    assert [r for r in records(tmp_path, "early") if r[0]] == [r for r in uninterrupted if r[0]]


def test_a_longer_run_continues_a_finished_one(tmp_path, capsys):
    assert main(arguments(tmp_path, "short", 10)) == 0
    assert main(arguments(tmp_path, "short", 20)) == 0
    assert "continuing after step 10" in capsys.readouterr().out
    assert [r[0] for r in records(tmp_path, "short") if r[1] == "train"] == list(range(1, 21))


def test_a_run_moves_between_meshes(tmp_path):
    """Started on eight devices, continued on one, with evaluation and samples on the way."""
    mesh = {"pipe": 2, "data": 2, "model": 2, "microbatches": 2}
    options = [f"--parallel.{name}={value}" for name, value in mesh.items()]
    more = ["--train.sample-every", "15"]
    assert main([*arguments(tmp_path, "moved", 30), *options, *more]) == 0
    assert main(arguments(tmp_path, "moved", 60)) == 0
    # The schedule of a run made longer is another one, so the reference is made in the same way.
    assert main(arguments(tmp_path, "still", 30)) == 0
    assert main(arguments(tmp_path, "still", 60)) == 0
    moved, still = records(tmp_path, "moved"), records(tmp_path, "still")
    assert [row[:2] for row in moved] == [row[:2] for row in still]
    assert [row[2] for row in moved] == pytest.approx([row[2] for row in still], rel=2e-6)
    assert [row[4] for row in moved] == [row[4] for row in still]
    samples = (tmp_path / "runs/moved/samples.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in samples] == [0, 0, 15, 15, 30, 30]
