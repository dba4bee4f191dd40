"""What a real run records is what reports read."""

import time

import jax
import pytest
from tiny import tiny_config, with_fields

from minigpt.launch.local import train
from minigpt.report.page import page
from minigpt.report.run import read_run
from minigpt.report.time_split import Clock, time_split
from minigpt.train.console import make_console


@pytest.mark.slow
def test_a_run_that_was_made_longer_accounts_for_all_its_time(tmp_path):
    config = tiny_config(
        tmp_path,
        train={"steps": 6, "eval_every": 3, "sample_every": 6, "log_every": 2},
        parallel={"data": 2, "model": 2},
    )
    spent = 0.0
    for steps in (6, 9):
        begin = time.time()
        train(with_fields(config, train={"steps": steps}), make_console())
        spent += time.time() - begin
    run = read_run(tmp_path / "tiny")
    split, clock = time_split(run), Clock(run)

    assert [attempt.ready.step for attempt in run.attempts] == [0, 6]
    assert [attempt.reason for attempt in run.attempts] == ["steps", "steps"]
    # What follows the end of training, its report, is no part of it.
    assert split.elapsed <= spent
    assert sum(split.seconds.values()) == pytest.approx(split.elapsed)
    assert all(split.seconds[use] > 0 for use in split.seconds if use != "other")
    assert 0 <= split.seconds["other"] < 0.5 * split.elapsed
    later = run.attempts[1]
    first_step = next(event for event in later.events if event.kind == "compile")
    # Start-up, the first batch and compiling, less what passed between them.
    assert 0 < split.seconds["lost"] <= first_step.time - later.begin

    assert clock.knows_all
    for records in (run.train_records, run.val_records):
        times = [clock.seconds(record) for record in records]
        assert times == sorted(times)
        assert times[0] > 0
        assert times[-1] < split.elapsed
    assert run.facts["mesh"] == {"pipe": 1, "data": 2, "model": 2}
    assert run.facts["device_names"] == [str(device.id) for device in jax.devices()[:4]]
    assert (run.facts["num_devices"], run.facts["num_nodes"]) == (4, 1)
    assert run.facts["versions"]["jax"] == jax.__version__
    assert "Finished: the last step" in page(run)
