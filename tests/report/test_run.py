import subprocess
import sys

import pytest
from report_runs import Attempt, usual_attempt, write_run

from minigpt.errors import CheckpointError, ConfigError
from minigpt.report.run import read_run


def test_everything_is_read(tmp_path):
    run = read_run(write_run(tmp_path))
    assert run.name == "one"
    assert [record.step for record in run.val_records] == [0, 10, 20]
    assert [record.step for record in run.train_records] == [5, 10, 15, 20]
    assert (run.step, run.tokens) == (20, 2000)
    assert run.samples[-1].text == " text 20"
    assert run.config.data.tokenizer == "byte"
    assert run.data_identity["num_stories"] == 60
    (attempt,) = run.attempts
    assert (attempt.launcher, attempt.reason, attempt.last_step) == ("local", "steps", 20)
    assert attempt.seconds == pytest.approx(35.75)
    assert run.facts["num_devices"] == 4


def test_a_run_of_before_there_were_events(tmp_path):
    run = read_run(write_run(tmp_path, attempts=[], samples=[]))
    assert (run.attempts, run.samples, run.facts) == ((), (), {})
    assert run.facts_of_all("mesh") == []
    assert run.step == 20


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 7, "split": "tr',
        b'{"step": 7, "split": "train", "loss": 1.0, "x": "\xf0\x9f',
        b'{"step": "7", "split": "train", "loss": 1.0}',
        b'{"step": 7, "split": "test", "loss": 1.0}',
        b'{"step": 7, "split": "train"}',
        b'{"step": 7, "split": "train", "loss": NaN}',
        b'{"step": 7, "split": "train", "loss": 1.0, "grad_norm": [1]}',
        b"[7]",
        b"null",
    ],
)
@pytest.mark.parametrize("file", ["metrics", "samples", "events"])
def test_lines_that_are_none_of_ours_are_passed_over(tmp_path, line, file):
    path = write_run(tmp_path)
    before = read_run(path)
    lines = path / f"{file}.jsonl"
    whole = lines.read_bytes()
    lines.write_bytes(line + b"\n" + whole + line)
    assert read_run(path) == before


def test_fields_of_a_later_version_are_ignored(tmp_path):
    path = write_run(tmp_path)
    with (path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 30, "split": "val", "loss": 2.0, "new": [1]}\n')
    assert read_run(path).val_records[-1].loss == 2.0


def test_attempts_of_one_launch_wait_for_each_other(tmp_path):
    """An automatic restart counts from the end of the attempt before, another launch does not."""
    first = Attempt(1000.0, launcher="ray", start=1005.0).ready(0).steps(4, 4, 8.0)
    again = Attempt(1000.0, launcher="ray", start=1040.0).ready(4).end("signal")
    later = Attempt(5000.0, start=5002.0).ready(4).end("steps")
    run = read_run(write_run(tmp_path, attempts=[first, again, later]))
    assert [attempt.begin for attempt in run.attempts] == [1000.0, 1017.0, 5000.0]
    assert [attempt.seconds for attempt in run.attempts] == [17.0, 27.0, 6.0]
    assert [attempt.reason for attempt in run.attempts] == [None, "signal", "steps"]
    assert [attempt.launcher for attempt in run.attempts] == ["ray", "ray", "local"]


def test_what_changed_between_attempts_is_listed_once(tmp_path):
    shapes = [{"pipe": 1}, {"pipe": 1}, {"pipe": 2}]
    attempts = [
        Attempt(100.0 * n).ready(n, mesh=shape).end("signal") for n, shape in enumerate(shapes, 1)
    ]
    run = read_run(write_run(tmp_path, attempts=attempts))
    assert run.facts_of_all("mesh") == [{"pipe": 1}, {"pipe": 2}]
    assert run.facts["mesh"] == {"pipe": 2}


def test_events_before_a_start_are_of_no_attempt(tmp_path):
    attempt = usual_attempt()
    attempt.lines.insert(0, {"time": 1.0, "kind": "steps", "step": 3, "step_seconds": 9.0})
    (read,) = read_run(write_run(tmp_path, attempts=[attempt])).attempts
    assert read.begin == 1000.0


def test_other_folders_are_refused(tmp_path):
    write_run(tmp_path, "mine")
    with pytest.raises(CheckpointError, match="is not a run directory; runs there: mine"):
        read_run(tmp_path / "other")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    path = write_run(tmp_path)
    (path / "samples.jsonl").unlink()
    (path / "samples.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"samples\.jsonl' cannot be read"):
        read_run(path)


def test_reading_a_run_loads_no_accelerator_runtime(tmp_path):
    path = write_run(tmp_path)
    code = (
        "import sys\n"
        "from minigpt.cli import main\n"
        f"assert main(['report', {str(path)!r}]) == 0\n"
        f"assert main(['compare', {str(path)!r}, {str(path)!r}]) == 0\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    loaded = {name.partition(".")[0] for name in shown.splitlines()[-1].split()}
    assert "rich" in loaded
    assert not loaded & {"jax", "flax", "ray", "orbax", "numpy", "matplotlib", "tensorboardX"}
