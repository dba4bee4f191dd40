"""Several processes train what one process trains, and agree on everything that they must."""

import json
from functools import partial

import pytest
import workers
from tiny import tiny_config, with_fields

from minigpt.cli import main
from minigpt.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    InterruptedRunError,
    MiniGPTError,
)
from minigpt.launch.processes import run_in_processes
from minigpt.train.run_directory import RunDirectory

pytestmark = pytest.mark.slow

MESHES = {
    "peers-in-a-process": {"data": 2, "model": 2},
    "peers-across-processes": {"pipe": 2, "model": 2, "microbatches": 2},
}


def config_in(folder, story_file, **parallel):
    return tiny_config(
        folder,
        story_file,
        data={"max_stories": 60},
        model={"num_heads": 2, "dropout": 0.1},
        optimizer={"learning_rate": 1e-3, "min_learning_rate": 1e-4},
        train={"steps": 8, "eval_every": 4, "sample_every": 8},
        parallel=parallel,
        checkpoint={"every": 4},
    )


def losses(config):
    lines = (RunDirectory.of(config).path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {(record["split"], record["step"]): record["loss"] for record in records}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for place, loss in expected.items():
        assert found[place] == pytest.approx(loss, rel=2e-6), place


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Losses of one device, and the corpus."""
    from minigpt.data.stories import corpus

    folder = tmp_path_factory.mktemp("reference")
    path = folder / "stories.txt"
    path.write_text("".join(corpus(0, 60)))
    config = config_in(folder / "runs", path)
    workers.train(config)
    return losses(config), path


@pytest.mark.parametrize(
    "mesh", [pytest.param("peers-in-a-process", marks=pytest.mark.long), "peers-across-processes"]
)
def test_two_processes_train_what_one_device_trains(tmp_path, reference, mesh):
    expected, path = reference
    config = config_in(tmp_path / "runs", path, **MESHES[mesh])
    results = run_in_processes(workers.train, config, num_processes=2, devices_per_process=2)
    assert [result.progress.step for result in results] == [8, 8]
    assert results[0].val_loss == results[1].val_loss
    assert_same(losses(config), expected)
    samples = (RunDirectory.of(config).path / "samples.jsonl").read_text().splitlines()
    assert len(samples) == 4  # of two prompts before the first and after the last step, once


def test_a_run_moves_between_processes_and_stops_everywhere_at_the_same_step(tmp_path, reference):
    """Stopped by a signal to one of four processes, continued by one process."""
    expected, path = reference
    config = config_in(tmp_path / "runs", path, data=4)
    with pytest.raises(InterruptedRunError, match="stopped by SIGTERM after step") as stopped:
        run_in_processes(
            workers.train, config, workers.StopAt, num_processes=4, devices_per_process=1
        )
    assert stopped.value.exit_code == 143
    saved = sorted(int(p.name) for p in RunDirectory.of(config).checkpoints.glob("[0-9]*"))
    assert 5 <= saved[-1] <= 7
    result = workers.train(with_fields(config, parallel={"data": 1}))
    assert result.progress.step == 8
    assert_same(losses(config), expected)


def test_peers_with_other_rows_are_refused(tmp_path, reference):
    config = config_in(tmp_path / "runs", reference[1], model=2)
    with pytest.raises(DataError, match="those of data-parallel group 0 hold different ones"):
        run_in_processes(
            workers.train_from_own_store, config, num_processes=2, devices_per_process=1
        )


@pytest.mark.long
def test_rows_dealt_by_process_train_something_else_which_only_the_check_sees(tmp_path, reference):
    """Peers that hold different rows are no error to jax: the loss is a mixture."""
    expected, path = reference
    config = config_in(tmp_path / "runs", path, data=2, model=2)
    run = partial(run_in_processes, workers.train_on_dealt_rows, num_processes=4)
    run(config, False, devices_per_process=1)
    found = losses(config)
    assert found.keys() == expected.keys()
    differences = [abs(found[place] / loss - 1) for place, loss in expected.items()]
    assert max(differences) > 1e-3
    config = config_in(tmp_path / "checked", path, data=2, model=2)
    with pytest.raises(DataError, match="those of data-parallel group 0, 1 hold different ones"):
        run(config, True, devices_per_process=1)


@pytest.mark.long
def test_processes_that_see_different_checkpoints_are_refused(tmp_path, reference):
    config = config_in(tmp_path / "runs", reference[1], data=2)
    workers.train(with_fields(config, train={"steps": 2}))
    with pytest.raises(CheckpointError, match="process 0: step 2, process 1: none"):
        run_in_processes(
            workers.train_in_own_directory, config, num_processes=2, devices_per_process=1
        )


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("refusal", ConfigError, "train.steps is wrong"),
        ("error", MiniGPTError, "ZeroDivisionError: a bug"),
        ("death", MiniGPTError, "process 1 of 2 died with exit code 7"),
    ],
)
def test_one_process_that_ends_ends_all(how, error, message):
    with pytest.raises(error, match=message):
        run_in_processes(workers.fail, how, num_processes=2, devices_per_process=1)


@pytest.mark.long
def test_verify_on_two_processes(capfd):
    mesh = ["--parallel.pipe", "2", "--parallel.data", "1", "--parallel.microbatches", "2"]
    assert main(["verify", "--processes", "2", "--steps", "3", *mesh]) == 0
    out = capfd.readouterr().out
    assert out.count(" equal ") == 6
    assert "Gloo" not in out


def test_processes_that_do_not_divide_the_devices_are_refused(capsys):
    assert main(["verify", "--processes", "3", "--parallel.pipe", "4"]) == 2
    assert "4 is not divisible by 3; the nearest that works is" in capsys.readouterr().err
