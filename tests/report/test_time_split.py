import pytest
from report_runs import Attempt, usual_attempt, usual_records, write_run

from minigpt.report.run import read_run
from minigpt.report.time_split import USES, Clock, time_split
from minigpt.train.record import Record


def split_of(tmp_path, *attempts, **more):
    split = time_split(read_run(write_run(tmp_path, attempts=attempts, **more)))
    assert sum(split.seconds.values()) == pytest.approx(split.elapsed)
    assert set(split.seconds) == set(USES)
    return split


def used(split):
    return {use: round(seconds, 6) for use, seconds in split.seconds.items() if seconds}


def test_one_attempt(tmp_path):
    split = split_of(tmp_path, usual_attempt())
    assert split.elapsed == pytest.approx(35.75)
    assert used(split) == {
        "startup": 4.0,
        "compile": 3.0,
        "step": 19.0,
        "data": 1.5,  # with the first batch
        "evaluation": 4.0,
        "samples": 2.0,
        "checkpoint": 1.0,
        "other": 1.25,
    }
    assert split.notes == ()


def test_steps_done_again_and_later_start_ups_are_lost(tmp_path):
    killed = (
        Attempt(1000.0)
        .ready(0)
        .compile(0)
        .steps(10, 10, 10.0)
        .pause("checkpoint", 10, 0.5)
        .steps(15, 5, 5.0)
        .pause("evaluation", 15, 1.0)
    )
    again = Attempt(9000.0).ready(10).compile(10).steps(15, 5, 5.0).end("steps", 1.0)
    split = split_of(tmp_path, killed, again)
    lost_before = 5.0 + 1.0
    lost_after = 4.0 + 0.5 + 3.0
    assert used(split) == {
        "startup": 4.0,
        "compile": 3.0,
        "step": 15.0 - 0.5,
        "data": 0.5 + 0.5,
        "checkpoint": 0.5,
        "lost": lost_before + lost_after,
        "other": 1.0,
    }
    assert split.elapsed == pytest.approx(24.0 + 13.5)  # what was between them does not count


def test_a_stop_that_saved_loses_only_the_start_up(tmp_path):
    stopped = Attempt(1000.0).ready(0).steps(7, 7, 7.0).pause("checkpoint", 7, 1.0).end("signal")
    again = Attempt(2000.0).ready(7).steps(9, 2, 2.0).end("steps")
    split = split_of(tmp_path, stopped, again)
    assert split.seconds["lost"] == pytest.approx(4.0)
    assert split.seconds["step"] == pytest.approx(9.0 - 0.5)


def test_the_wait_for_an_automatic_restart_is_lost(tmp_path):
    first = Attempt(1000.0).ready(0).steps(5, 5, 5.0).pause("checkpoint", 5, 1.0)
    again = Attempt(1000.0, start=1040.0).ready(5).steps(6, 1, 1.0).end("steps")
    split = split_of(tmp_path, first, again)
    assert split.elapsed == pytest.approx(45.0)
    assert split.seconds["lost"] == pytest.approx(30.0 + 4.0)


def test_going_back_further_loses_work_of_several_attempts(tmp_path):
    first = Attempt(100.0).ready(0).steps(5, 5, 5.0, 0.0).steps(10, 5, 5.0, 0.0)
    second = Attempt(200.0).ready(10).steps(15, 5, 5.0, 0.0)
    third = Attempt(300.0).ready(5).steps(15, 10, 10.0, 0.0).end("steps")
    split = split_of(tmp_path, first, second, third)
    assert split.seconds["step"] == pytest.approx(5.0 + 10.0)
    assert split.seconds["lost"] == pytest.approx(5.0 + (4.0 + 5.0) + 4.0)


def test_work_before_any_checkpoint_is_lost_with_its_evaluation(tmp_path):
    first = Attempt(100.0).ready(0).pause("evaluation", 0, 2.0).steps(5, 5, 5.0)
    second = Attempt(200.0).ready(0).pause("evaluation", 0, 2.0).steps(5, 5, 5.0).end("steps")
    split = split_of(tmp_path, first, second)
    assert split.seconds["lost"] == pytest.approx(2.0 + 5.0 + 4.0)
    assert split.seconds["evaluation"] == pytest.approx(2.0)


def test_an_attempt_that_never_got_ready_is_lost(tmp_path):
    failed = Attempt(100.0).end("CheckpointError", 3.0)
    split = split_of(tmp_path, failed, usual_attempt())
    assert split.seconds["lost"] == pytest.approx(3.0)
    assert split.seconds["startup"] == pytest.approx(4.0)


def test_an_attempt_that_only_began(tmp_path):
    split = split_of(tmp_path, Attempt(100.0, start=103.0))
    assert used(split) == {"startup": 3.0}


def test_without_events_records_tell_of_steps(tmp_path):
    split = split_of(tmp_path)
    assert used(split) == {"step": 19.0, "data": 1.0, "other": 6.5}
    assert split.elapsed == 26.5
    assert "no events.jsonl" in split.notes[0]


def test_events_that_begin_late_are_said_to(tmp_path):
    split = split_of(tmp_path, Attempt(100.0).ready(10).steps(20, 10, 10.0).end("steps"))
    assert "before step 10 is not known" in split.notes[0]


def test_the_clock_counts_everything_that_was_paid_for(tmp_path):
    killed = Attempt(1000.0).ready(0).compile(0).steps(5, 5, 5.0).steps(10, 5, 5.0)
    again = Attempt(9000.0).ready(5).steps(10, 5, 6.0).pause("evaluation", 10, 1.0).end("steps")
    records = [
        Record(step=step, split=split, loss=1.0, elapsed_seconds=0.0)
        for step, split in [(5, "train"), (10, "train"), (10, "val")]
    ]
    run = read_run(write_run(tmp_path, attempts=[killed, again], records=records))
    clock = Clock(run)
    assert clock.knows_all
    seconds = [clock.seconds(record) for record in run.records]
    assert seconds == pytest.approx([12.5, 17.5 + 10.0, 17.5 + 11.0])


def test_without_all_events_the_clock_is_that_of_the_loop(tmp_path):
    for number, attempts in enumerate(([], [Attempt(100.0).ready(10).steps(20, 10, 10.0)])):
        run = read_run(write_run(tmp_path, str(number), attempts=attempts))
        clock = Clock(run)
        assert not clock.knows_all
        records = usual_records()
        assert [clock.seconds(r) for r in run.records] == [r.elapsed_seconds for r in records]
