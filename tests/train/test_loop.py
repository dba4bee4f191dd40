import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import batch_of, eval_step_of, layout_of, new_state, tiny_config, train_step_of

from minigpt.data.batches import Batch
from minigpt.errors import NonFiniteError
from minigpt.train.checkpoint import Checkpoints, Progress
from minigpt.train.events import EventLog
from minigpt.train.loop import Training, fit
from minigpt.train.metrics import JsonlSink
from minigpt.train.signals import Agreement, StopSignals


class Recorder:
    """A sink that keeps everything in order."""

    def __init__(self):
        self.events = []

    def write(self, record):
        self.events.append((record.split, record.step, record))

    def write_samples(self, step, samples):
        self.events.append(("samples", step, samples))

    def close(self):
        self.events.append(("close", None, None))


class Batches:
    """Batches of random tokens on the host: one seed for each step, or one for all."""

    def __init__(self, seed=None):
        self.seed = seed

    def batches(self, start, stop):
        for step in range(start, stop):
            yield Batch(*map(np.asarray, batch_of(step if self.seed is None else self.seed)))


def run(tmp_path, config, *, train_step=None, source=None):
    """Fit under a guard against implicit transfers; (result or error, saved steps, events)."""
    state = new_state(config)
    recorder = Recorder()

    def to_device(batch):
        recorder.events.append(("batch", None, None))
        return jax.device_put(batch)

    with StopSignals() as signals, Checkpoints(tmp_path / "c", keep=9) as checkpoints:
        events = EventLog(tmp_path, launcher="local", launched=0.0)
        training = Training(
            config=config,
            train_step=train_step or train_step_of(config),
            eval_step=eval_step_of(config),
            source=source or Batches(),
            validation=lambda: iter([Batch(*map(np.asarray, batch_of(99, ragged=True)))] * 2),
            to_device=to_device,
            to_saved=layout_of(config).save,
            sampler=lambda params: [("prompt", "text")],
            checkpoints=checkpoints,
            sinks=[recorder],
            events=events,
            agreement=Agreement(signals, layout_of(config).mesh),
            check_peers=lambda batch: None,
            notify=lambda text: None,
            beat=lambda: None,
            flops_per_token=1000,
            peak_flops=1e6,
        )
        with jax.transfer_guard("disallow"):
            try:
                outcome = fit(training, state, Progress())
            except NonFiniteError as error:
                outcome = error
        checkpoints.wait()
        return outcome, checkpoints.steps(), recorder.events


def steps_of(events, kind):
    return [step for name, step, _ in events if name == kind]


def test_everything_happens_when_it_is_due(tmp_path):
    config = tiny_config(train={"steps": 10, "log_every": 3, "eval_every": 4, "sample_every": 5})
    result, saved, events = run(tmp_path, config)
    assert result.reason == "steps"
    assert result.progress.step == 10
    assert result.progress.num_tokens == 10 * 8 * 32
    assert steps_of(events, "train") == [3, 6, 9, 10]
    assert steps_of(events, "val") == [0, 4, 8, 10]
    assert steps_of(events, "samples") == [0, 5, 10]
    assert saved == [4, 8, 10]
    records = [record for kind, _, record in events if kind == "train"]
    for record in records:
        assert record.mfu == pytest.approx(record.tokens_per_second * 1000 / 1e6)
        assert 0 <= record.data_seconds < record.step_seconds
    elapsed = [record.elapsed_seconds for record in records]
    assert elapsed == sorted(elapsed)


def test_metrics_are_read_one_step_late(tmp_path):
    """Step N + 1 has its batch and runs before the metrics of step N are looked at."""
    config = tiny_config(train={"steps": 4, "log_every": 1}, checkpoint={"every": 0})
    _, _, events = run(tmp_path, config)
    kinds = [kind for kind, _, _ in events]
    assert kinds == ["batch", "batch", "train", "batch", "train", "batch", "train", "train"]


def test_target_loss_stops(tmp_path):
    config = tiny_config(train={"steps": 60, "eval_every": 5, "target_loss": 5.0})
    result, saved, events = run(tmp_path, config, source=Batches(seed=99))
    losses = [record.loss for kind, _, record in events if kind == "val"]
    assert result.reason == "target_loss"
    assert losses[-1] <= 5.0 < losses[-2]
    assert result.val_loss == losses[-1]
    assert saved[-1] == result.progress.step < 60


def test_evaluation_is_the_mean_over_all_valid_targets(tmp_path):
    config = tiny_config(train={"steps": 1, "eval_every": 1})
    _, _, events = run(tmp_path, config)
    first = next(record for kind, _, record in events if kind == "val")
    params = new_state(config).params
    total, count = eval_step_of(config)(params, batch_of(99, ragged=True))
    assert first.loss == pytest.approx(float(total / count), rel=1e-6)


@pytest.mark.parametrize("bad_step", [1, 6])
def test_non_finite_stops_and_keeps_the_last_good_checkpoint(tmp_path, bad_step):
    config = tiny_config(train={"steps": 12}, checkpoint={"every": 2})
    step = train_step_of(config)

    def poisoned(state, batch):
        state, metrics = step(state, batch)
        bad = state.step == bad_step
        return state, metrics._replace(loss=jnp.where(bad, jnp.nan, metrics.loss))

    error, saved, events = run(tmp_path, config, train_step=jax.jit(poisoned))
    assert error.exit_code == 3
    assert f"stopped at step {bad_step}" in str(error)
    assert saved == list(range(2, bad_step, 2))
    assert all(math.isfinite(record.loss) for kind, _, record in events if kind == "train")


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "loss": 1.0}) for step in (0, 5, 10, 15)]
    path.write_text("\n".join(lines) + '\n{"step": 20, "lo')
    JsonlSink(tmp_path, start_step=10).close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 5, 10]


def test_events_say_what_all_time_went_to(tmp_path):
    """Steps are noted at records and pauses, so that no checkpoint lies within a span."""
    config = tiny_config(
        train={"steps": 10, "log_every": 3, "eval_every": 4, "sample_every": 5},
        checkpoint={"every": 7},
    )
    result, _, _ = run(tmp_path, config)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    seen = [(event["kind"], event["step"]) for event in events if "step" in event]
    assert [step for kind, step in seen if kind == "steps"] == [3, 4, 5, 6, 7, 8, 9, 10]
    assert [step for kind, step in seen if kind == "evaluation"] == [0, 4, 8, 10]
    assert [step for kind, step in seen if kind == "samples"] == [0, 5, 10]
    assert [step for kind, step in seen if kind == "checkpoint"] == [7, 10, 10]
    assert seen.index(("steps", 7)) < seen.index(("checkpoint", 7))
    spans = [event for event in events if event["kind"] == "steps"]
    assert sum(span["steps"] for span in spans) == 10
    assert sum(span["tokens"] for span in spans) == result.progress.num_tokens
    assert all(0 <= span["data_seconds"] < span["step_seconds"] for span in spans)
    (compiled,) = [event for event in events if event["kind"] == "compile"]
    assert compiled["argument_bytes"] > 0
    # Everything the loop did is in some event.
    total = sum(event.get("seconds", event.get("step_seconds", 0.0)) for event in events)
    assert total == pytest.approx(result.progress.elapsed_seconds, rel=1e-6)
