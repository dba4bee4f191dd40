"""Training through Ray is training as on one device, whatever happens to workers and driver."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray.train
import ray_driver
from ray_cluster import train_workers
from rich.console import Console
from tiny import tiny_config, with_fields

from minigpt.cli import main
from minigpt.config_file import config_to_yaml
from minigpt.errors import ConfigError
from minigpt.launch import local
from minigpt.launch import ray as through_ray
from minigpt.train.run_directory import RunDirectory

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The `parse_obj` method is deprecated"),  # of Ray
]

STEPS, FEWER_STEPS = 60, 20
TWO_BY_TWO = {
    "parallel": {"pipe": 2, "model": 2, "microbatches": 2},
    "cluster": {"num_workers": 2, "devices_per_worker": 2},
}
TWO_BY_ONE = {
    "parallel": {"model": 2},
    "cluster": {"num_workers": 2, "devices_per_worker": 1},
}
ONE_BY_TWO = {
    "parallel": {"pipe": 1, "model": 2, "microbatches": 1},
    "cluster": {"num_workers": 1, "devices_per_worker": 2},
}


def config_in(folder, **groups):
    config = tiny_config(
        folder,
        model={"dropout": 0.1},
        optimizer={"schedule": "constant"},
        train={"steps": STEPS, "eval_every": 10},
        checkpoint={"every": 4, "keep": 2},
    )
    return with_fields(config, **groups)


def train_here(config):
    """On one device; what was shown."""
    out = io.StringIO()
    local.train(config, Console(file=out, width=200))
    return out.getvalue()


class Driver:
    """The command in a process of its own, as Ray must not be started from a process with jax."""

    def __init__(self, config, *, raising=False):
        folder = Path(config.run.directory)
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(config_to_yaml(config))
        program = [ray_driver.__file__] if raising else ["-m", "minigpt"]
        self.process = subprocess.Popen(
            [sys.executable, *program, "train", "--config", str(folder / "config.yaml")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "200"},
        )

    def end(self, code):
        """Wait for this exit code; what was shown."""
        try:
            shown, _ = self.process.communicate(timeout=400)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            raise
        assert self.process.returncode == code, shown
        return shown


def records(config):
    path = RunDirectory.of(config).path / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(config):
    """By split and step, each of which stands once."""
    found = {(record["split"], record["step"]): record["loss"] for record in records(config)}
    assert len(found) == len(records(config))
    return found


def assert_losses(config, expected, steps):
    expected = {place: loss for place, loss in expected.items() if place[1] <= steps}
    found = losses(config)
    assert found.keys() == expected.keys()
    for place, loss in expected.items():
        assert found[place] == pytest.approx(loss, rel=2e-6), place


def wait_for_step(config, step):
    """The newest checkpoint once the run has got to a step."""
    deadline = time.monotonic() + 300
    while max((record["step"] for record in records(config)), default=0) < step:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return RunDirectory.of(config).newest_step()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Losses of one device in one process."""
    config = config_in(tmp_path_factory.mktemp("one-device"))
    train_here(config)
    return losses(config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def test_a_killed_worker_costs_no_step_and_changes_no_loss(folder, expected):
    config = config_in(folder, train={"steps": FEWER_STEPS, "eval_every": 10}, **TWO_BY_ONE)
    driver = Driver(config)
    checkpoint = wait_for_step(config, 10)
    os.kill(train_workers(driver.process.pid)[-1], signal.SIGKILL)
    shown = driver.end(0)
    assert "the group is started again if it may" in shown
    [continued] = [line for line in shown.splitlines() if line.startswith("continuing after")]
    assert int(continued.split()[-1]) >= checkpoint
    assert_losses(config, expected, FEWER_STEPS)
    assert_result(config)


def assert_result(config):
    """Ray's own view of the run: checkpoints that are there, each with its step's metrics."""
    found = losses(config)
    run = RunDirectory.of(config)
    result = ray.train.Result.from_path(run.path)
    assert result.checkpoint.path == str(run.checkpoints / str(run.newest_step()))
    assert result.metrics["step"] == run.newest_step()
    kept = [int(checkpoint.path.rpartition("/")[2]) for checkpoint, _ in result.best_checkpoints]
    assert kept == sorted(int(entry.name) for entry in run.checkpoints.glob("[0-9]*"))
    for step, (_, metrics) in zip(kept, result.best_checkpoints, strict=True):
        assert metrics["loss"] == found["train", step]
        assert metrics["val_loss"] == found["val", step - step % 10]


@pytest.mark.long
def test_a_run_moves_between_launchers_and_stops_at_sigterm(folder, expected):
    """After the run above: a bit on one device, then Ray with another mesh, then one device."""
    config = config_in(folder)
    train_here(with_fields(config, train={"steps": FEWER_STEPS + 10}))
    driver = Driver(with_fields(config, **ONE_BY_TWO))
    wait_for_step(config, FEWER_STEPS + 14)
    driver.process.terminate()
    shown = driver.end(143)
    assert f"continuing after step {FEWER_STEPS + 10}" in shown
    assert "stopped by SIGTERM after step" in shown
    saved = RunDirectory.of(config).newest_step()
    assert FEWER_STEPS + 14 <= saved < STEPS
    assert max(record["step"] for record in records(config)) == saved
    assert f"continuing after step {saved}" in train_here(config)
    assert_losses(config, expected, STEPS)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0, 1, 3])
def test_sigterm_while_workers_start_ends_the_run_at_once(tmp_path, seconds):
    driver = Driver(config_in(tmp_path, **TWO_BY_TWO))
    assert driver.process.stdout is not None
    while not driver.process.stdout.readline().startswith("data:"):
        assert driver.process.poll() is None
    time.sleep(seconds)
    driver.process.terminate()
    assert "minigpt: stopped by SIGTERM" in driver.end(143)
    assert records(config_in(tmp_path)) == []


@pytest.mark.long
def test_a_worker_that_raises_ends_the_run_with_its_reason(tmp_path):
    """The other worker waits for it in a collective, and a save is not yet reported."""
    config = config_in(tmp_path, **TWO_BY_TWO)
    driver = Driver(with_fields(config, cluster={"max_failures": 0}), raising=True)
    assert (
        "minigpt: the workers failed more than cluster.max_failures 0 times; the last time worker "
        "1: a bug at step 6; the checkpoint of step 4 is kept: run the same command again to "
        "continue\n"
    ) in driver.end(1)


@pytest.mark.long
def test_a_loss_that_is_not_finite_is_not_tried_again(tmp_path):
    config = config_in(tmp_path, optimizer={"learning_rate": 1e30}, **TWO_BY_TWO)
    shown = Driver(config).end(3)
    assert "training stopped at step" in shown
    assert shown.count("compiled the step") == 1


def test_workers_of_unequal_rows_are_refused_before_ray_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(through_ray, "connect", None)
    config = config_in(
        tmp_path,
        model={"num_heads": 4},
        train={"global_batch_size": 6},
        parallel={"data": 3, "model": 4},
        cluster={"num_workers": 4, "devices_per_worker": 3},
    )
    with pytest.raises(ConfigError, match=r"as many rows.*they hold 2, 4, 4, 2; use a"):
        through_ray.train(config, Console(quiet=True))


def test_a_wrong_address_is_said(capsys):
    options = ["--cluster.num-workers", "2", "--cluster.address", "127.0.0.1:1"]
    assert main(["train", *options]) == 2
    assert (
        "no Ray cluster answers at '127.0.0.1:1' ([Errno 111] Connection refused)"
        in capsys.readouterr().err
    )
