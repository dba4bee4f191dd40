import gc
import resource
import shutil
import signal

import jax
import numpy as np
import pytest
import tiny
from tiny import batch_of, tiny_config, train_step_of

from minigpt.errors import CheckpointError
from minigpt.train.checkpoint import Checkpoints, Progress

CONFIG = tiny_config()


def new_state(seed=0):
    return tiny.new_state(CONFIG, seed)


def assert_equal(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.fixture
def saved(tmp_path):
    """A folder with checkpoints of steps 1 and 2, and the two states."""
    states = [new_state(1), new_state(2)]
    with Checkpoints(tmp_path / "checkpoints", keep=3) as checkpoints:
        for step, state in enumerate(states, 1):
            checkpoints.save(state, Progress(step=step, num_tokens=10 * step))
    return tmp_path / "checkpoints", states


@pytest.fixture
def failing_storage():
    """Orbax leaves coroutines unawaited when storage fails; they are collected here."""
    yield
    gc.collect()


ignore_unawaited = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning"
)


def truncate_data(checkpoint):
    """Cut every array file of a checkpoint short."""
    for path in checkpoint.glob("*/d/*"):
        path.write_bytes(path.read_bytes()[:20])


def restore(folder):
    with Checkpoints(folder, keep=3) as checkpoints:
        return checkpoints.restore(new_state(9))


def test_round_trip_is_bitwise(saved):
    folder, states = saved
    restored = restore(folder)
    assert restored.progress == Progress(step=2, num_tokens=20)
    assert restored.unreadable == ()
    assert_equal(restored.state.params, states[1].params)
    assert_equal(restored.state.opt_state, states[1].opt_state)
    assert restored.state.step == 2


def test_training_on_does_not_disturb_a_running_save(tmp_path):
    """The step consumes its state while Orbax still writes it."""
    step = train_step_of(CONFIG)
    state = new_state()
    with Checkpoints(tmp_path / "c", keep=9) as checkpoints:
        expected = {}
        for number in range(1, 5):
            state, _ = step(state, batch_of(number))
            expected[number] = jax.tree.map(np.array, state.params)
            checkpoints.save(state, Progress(step=number))
    for number in (4, 3, 2, 1):
        assert_equal(restore(tmp_path / "c").state.params, expected[number])
        shutil.rmtree(tmp_path / "c" / str(number))


def test_only_the_newest_are_kept(tmp_path):
    with Checkpoints(tmp_path / "c", keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(new_state(step), Progress(step=step))
        checkpoints.wait()
        assert checkpoints.steps() == [2, 3]


@ignore_unawaited
@pytest.mark.usefixtures("failing_storage")
@pytest.mark.parametrize("with_sizes", [True, False])
def test_a_truncated_newest_gives_way_to_the_one_before(saved, with_sizes, capfd):
    folder, states = saved
    truncate_data(folder / "2")
    if not with_sizes:  # as if the process had died before it noted them
        (folder / "2" / "sizes.json").unlink()
    restored = restore(folder)
    assert restored.progress.step == 1
    assert restored.unreadable == (2,)
    assert_equal(restored.state.params, states[0].params)
    assert (folder.parent / "checkpoints-unreadable" / "2").is_dir()
    with Checkpoints(folder, keep=3) as checkpoints:
        checkpoints.save(states[1], Progress(step=2))
    assert_equal(restore(folder).state.params, states[1].params)
    if with_sizes:
        assert "Traceback" not in capfd.readouterr().err


def test_when_none_can_be_read_nothing_is_touched(saved):
    folder, _ = saved
    for step in (1, 2):
        truncate_data(folder / str(step))
    before = sorted(path for path in folder.rglob("*"))
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints .*\(step 2: .* step 1: "):
        restore(folder)
    assert sorted(path for path in folder.rglob("*")) == before


def test_a_half_written_checkpoint_is_not_one(saved):
    folder, _ = saved
    shutil.copytree(folder / "2", folder / "3.orbax-checkpoint-tmp")
    with Checkpoints(folder, keep=3) as checkpoints:
        assert checkpoints.steps() == [1, 2]


def test_parameters_alone(saved):
    folder, states = saved
    truncate_data(folder / "2")
    with Checkpoints(folder, keep=None) as checkpoints:
        params, progress = checkpoints.restore_params(new_state().params)
    assert progress.step == 1
    assert_equal(params, states[0].params)
    assert (folder / "2").is_dir()


def save_on_a_full_disk(folder, state):
    """A file size limit makes writing fail as a full disk does."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with Checkpoints(folder, keep=3) as checkpoints:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
            checkpoints.save(state, Progress(step=3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@ignore_unawaited
@pytest.mark.usefixtures("failing_storage")
def test_a_full_disk_keeps_the_checkpoint_before(saved):
    folder, states = saved
    state = new_state(3)
    with pytest.raises(CheckpointError) as caught:
        save_on_a_full_disk(folder, state)
    assert "the checkpoint of step 2 is intact" in str(caught.value)
    assert "File too large" in str(caught.value)
    assert "MiB are free" in str(caught.value)
    assert caught.value.exit_code == 2
    assert_equal(restore(folder).state.params, states[1].params)


def test_an_empty_folder(tmp_path):
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        restore(tmp_path)
