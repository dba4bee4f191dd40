"""What runs in a Ray worker, without Ray."""

import faulthandler
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray.train

from minigpt.launch.ray_worker import Reporter, Terminal, Watchdog
from minigpt.train.metrics import Record


def test_the_terminal_hands_on_what_was_told_once():
    terminal = Terminal()
    terminal.tell("say", "one")
    terminal.tell("start", 4)
    assert terminal.take() == [("say", "one"), ("start", 4)]
    assert terminal.take() == []
    assert terminal.received() == 0
    terminal.stop(15)
    assert terminal.received() == 15


def record(step, split="train", loss=1.0):
    return Record(step=step, split=split, loss=loss, tokens=8 * step, elapsed_seconds=1.0)


def test_a_checkpoint_is_reported_with_the_metrics_of_its_step(monkeypatch):
    """Though it is on disk only when later steps have been logged."""
    reports = []
    monkeypatch.setattr(ray.train, "report", lambda metrics, **options: reports.append(metrics))
    reporter = Reporter()
    for step in range(1, 11):
        reporter.write(record(step, loss=10.0 - step))
        if step % 5 == 0:
            reporter.write(record(step, "val", loss=20.0 - step))
        if step in (6, 9):
            reporter.saved(step - 2, Path("checkpoints"))
    reporter.saved(10, Path("checkpoints"))
    found = [(metrics["step"], metrics["loss"], metrics.get("val_loss")) for metrics in reports]
    assert found == [(4, 6.0, None), (7, 3.0, 15.0), (10, 0.0, 10.0)]


def test_a_checkpoint_before_the_first_record_is_reported(monkeypatch):
    reports = []
    monkeypatch.setattr(ray.train, "report", lambda metrics, **options: reports.append(metrics))
    reporter = Reporter()
    reporter.saved(3, Path("checkpoints"))
    reporter.write(record(4))
    reporter.saved(4, Path("checkpoints"))
    assert reports[0] == {"step": 3}
    assert reports[1]["loss"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("beats", "code"), [(1, 1), (8, 0)])
def test_a_process_that_stops_beating_ends_and_says_where_it_was(beats, code):
    """It waits two seconds, with a beat each quarter at first; one second is allowed."""
    program = f"""
import time
from pathlib import Path
from minigpt.launch.ray_worker import Watchdog
def wait_for_ever():
    watchdog = Watchdog(1.0)
    for turn in range(8):
        if turn < {beats}:
            watchdog.beat()
        time.sleep(0.25)
    watchdog.stop()
wait_for_ever()
"""
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == code
    assert ("wait_for_ever" in ended.stderr) == (code == 1)
    assert time.monotonic() - started < 100


def test_no_time_limit_is_none(monkeypatch):
    limits = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda seconds, **_: limits.append(seconds)
    )
    Watchdog(0.0).beat()
    Watchdog(2.0).beat()
    assert limits == [2.0]
