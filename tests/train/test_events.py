import json
import time

import pytest

from minigpt.errors import CheckpointError, InterruptedRunError, NonFiniteError
from minigpt.train.events import EventLog


def read(directory):
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


def kinds(directory):
    return [event["kind"] for event in read(directory)]


def test_an_attempt_has_a_start_events_and_an_end(tmp_path):
    before = time.time()
    with EventLog(tmp_path, launcher="ray", launched=5.0) as events:
        events.write("compile", seconds=2.5, step=0)
        events.ends_with("target_loss")
    start, compiled, end = read(tmp_path)
    assert (start["kind"], start["launcher"], start["launched"]) == ("start", "ray", 5.0)
    assert (compiled["kind"], compiled["seconds"]) == ("compile", 2.5)
    assert (end["kind"], end["reason"]) == ("end", "target_loss")
    times = [start["time"], compiled["time"], end["time"]]
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= time.time()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InterruptedRunError("why", signal_number=15), "signal"),
        (NonFiniteError("why"), "non_finite"),
        (CheckpointError("why"), "CheckpointError"),
        (RuntimeError("why"), "RuntimeError"),
    ],
)
def test_an_error_is_the_reason_and_goes_on(tmp_path, error, reason):
    def attempt():
        with EventLog(tmp_path, launcher="local", launched=0.0) as events:
            events.ends_with("steps")
            raise error

    with pytest.raises(type(error), match="why"):
        attempt()
    assert read(tmp_path)[-1]["reason"] == reason


def test_another_attempt_appends_even_to_a_line_that_was_cut_off(tmp_path):
    EventLog(tmp_path, launcher="local", launched=1.0)
    with (tmp_path / "events.jsonl").open("a") as stream:
        stream.write('{"time": 3.0, "ki')
    EventLog(tmp_path, launcher="local", launched=2.0).write("ready", step=4)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(lines) == 4
    whole = [json.loads(line) for line in (lines[0], *lines[2:])]
    assert [event.get("launched") for event in whole] == [1.0, 2.0, None]


def test_other_processes_write_nothing(tmp_path):
    with EventLog(None, launcher="local", launched=0.0) as events:
        events.write("ready", step=0)
    assert not list(tmp_path.iterdir())
