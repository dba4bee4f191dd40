"""The training loop."""

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import jax

from minigpt.config import Config
from minigpt.data.batches import Batch, BatchSource
from minigpt.errors import InterruptedRunError, NonFiniteError
from minigpt.train.checkpoint import Checkpoints, Progress
from minigpt.train.events import EventLog
from minigpt.train.metrics import Sink, StepTimer, Stopwatch
from minigpt.train.record import Record
from minigpt.train.signals import Agreement
from minigpt.train.state import Params, TrainState
from minigpt.train.step import HostMetrics, StepMetrics

Sampler = Callable[[Params], Sequence[tuple[str, str]]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Everything the loop needs; a launcher puts it together."""

    config: Config
    train_step: jax.stages.Wrapped
    """``(state, batch) -> (state, metrics)``, consuming the state."""
    eval_step: Callable[[Params, Batch], tuple[jax.Array, jax.Array]]
    """``(params, batch) -> (summed loss, valid targets)``."""
    source: BatchSource
    validation: Callable[[], Iterator[Batch]]
    to_device: Callable[[Batch], Batch]
    """From the rows that this process holds to the global batch."""
    check_peers: Callable[[Batch], None]
    """Refuses a global batch whose rows differ between devices that must hold the same."""
    to_saved: Callable[[TrainState], TrainState]
    """The state as checkpoints hold it, whatever the mesh."""
    sampler: Sampler
    checkpoints: Checkpoints
    sinks: Sequence[Sink]
    events: EventLog
    """Is told what time goes to."""
    agreement: Agreement
    notify: Callable[[str], None]
    beat: Callable[[], None]
    """Called when there was progress."""
    flops_per_token: int
    peak_flops: float | None
    """Of all devices together."""


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """How training ended."""

    reason: Literal["steps", "target_loss"]
    progress: Progress
    val_loss: float | None


def fit(training: Training, state: TrainState, progress: Progress) -> FitResult:
    """Train from ``progress`` to the last step or the target loss, saving on the way.

    The device is never waited for to print: the metrics of a step are read while the next one
    runs, except where the step ends in an evaluation, samples or a checkpoint.

    Raises:
        NonFiniteError: the loss or the gradient norm is not finite; nothing of that step is saved.
        InterruptedRunError: a signal came; the state was saved.
        CheckpointError: a checkpoint could not be written.
    """
    return _Fit(training, state, progress).run()


class _Fit:
    """The loop's state: what has been dispatched, and what has been read back of it."""

    def __init__(self, training: Training, state: TrainState, progress: Progress) -> None:
        self.training = training
        self.config = training.config.train
        self.state = state
        self.progress = progress  # of the last step whose metrics were read
        self.compiled_step: jax.stages.Compiled | None = None
        self.unread: StepMetrics | None = None
        self.timer = StepTimer()  # since the last record
        self.span = StepTimer()  # since the last event
        self.stopwatch = Stopwatch()
        self.waited = 0.0
        self.val_loss: float | None = None

    def run(self) -> FitResult:
        first, last = self.progress.step, self.config.steps
        with self.training.agreement.signals.deferred():
            batches = self.training.source.batches(first, last)
            if self.progress.paused_step != first:  # new, or stopped in an evaluation
                self.evaluate_and_sample(first)
            for step in range(first + 1, last + 1):
                self.stop_if_signalled()
                self.dispatch(batches)
                if self.is_pause(step):
                    self.read_metrics()
                    self.evaluate_and_sample(step)
                    self.save_if_due(step)
                if self.target_reached():
                    return self.finish("target_loss")
            return self.finish("steps")

    def dispatch(self, batches: Iterator[Batch]) -> None:
        """Start a step, then read the metrics of the one before it."""
        waiting = Stopwatch()
        batch = self.training.to_device(next(batches))
        self.waited += waiting.lap()  # counts for the step that ends now
        if self.compiled_step is None:
            self.count_elapsed("first_batch")
            self.training.check_peers(batch)
            self.compiled_step = self.compile(batch)
        self.state, metrics = self.compiled_step(self.state, batch)
        self.read_metrics()
        self.unread = metrics
        self.training.agreement.exchange()

    def compile(self, batch: Batch) -> jax.stages.Compiled:
        compiled = self.training.train_step.lower(self.state, batch).compile()
        memory = compiled.memory_analysis()
        assert memory is not None, "every backend of jax 0.11 to 0.12 has it"
        arguments, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
        seconds = self.count_elapsed("compile", argument_bytes=arguments, temporary_bytes=temporary)
        self.training.notify(
            f"compiled the step in {seconds:.1f} s; it needs "
            f"{(arguments + temporary) / 2**20:.0f} MiB of memory"
        )
        return compiled

    def read_metrics(self) -> None:
        """Bring the progress up to the last dispatched step; waits for that step."""
        if self.unread is None:
            return
        metrics = HostMetrics(*map(float, jax.device_get(self.unread)))
        self.unread = None
        self.training.agreement.read()
        self.training.beat()
        step, tokens = self.progress.step + 1, int(metrics.num_tokens)
        if not (math.isfinite(metrics.loss) and math.isfinite(metrics.grad_norm)):
            self.note_steps()
            raise NonFiniteError(
                f"training stopped at step {step}: the loss is {metrics.loss} and the gradient "
                f"norm {metrics.grad_norm}; {self.last_checkpoint()}. A lower "
                "optimizer.learning_rate, a longer optimizer.warmup_steps or a smaller "
                "optimizer.clip_norm may help"
            )
        seconds = self.stopwatch.lap()
        for timer in (self.timer, self.span):
            timer.add(seconds=seconds, waited=self.waited, tokens=tokens)
        self.waited = 0.0
        self.progress = replace(
            self.progress,
            step=step,
            num_tokens=self.progress.num_tokens + tokens,
            elapsed_seconds=self.progress.elapsed_seconds + seconds,
        )
        logs = step % self.config.log_every == 0 or step == self.config.steps
        if logs:
            self.log(metrics)
        if logs or self.is_pause(step):
            self.note_steps()

    def log(self, metrics: HostMetrics) -> None:
        record = Record(
            step=self.progress.step,
            split="train",
            loss=metrics.loss,
            learning_rate=metrics.learning_rate,
            grad_norm=metrics.grad_norm,
            tokens=self.progress.num_tokens,
            elapsed_seconds=self.progress.elapsed_seconds,
            **self.timer.rates(self.training.flops_per_token, self.training.peak_flops),
        )
        self.timer = StepTimer()
        for sink in self.training.sinks:
            sink.write(record)

    def note_steps(self) -> None:
        """Write an event of the steps since the last one; a checkpoint is never between them."""
        if self.span.steps:
            self.training.events.write("steps", step=self.progress.step, **asdict(self.span))
            self.span = StepTimer()

    def is_pause(self, step: int) -> bool:
        """Whether the device is waited for after this step."""
        return self.evaluates(step) or self.samples(step) or self.saves(step)

    def evaluate_and_sample(self, step: int) -> None:
        """Whatever is due after a step; its time counts as elapsed, not as step time."""
        complete = True
        if self.evaluates(step):
            complete = self.evaluate()
            self.count_elapsed("evaluation")
        if complete and self.samples(step):
            samples = self.training.sampler(self.state.params)
            for sink in self.training.sinks:
                sink.write_samples(step, samples)
            self.count_elapsed("samples")
        if complete:
            self.progress = replace(self.progress, paused_step=step)

    def save_if_due(self, step: int) -> None:
        """Start saving; a step that a signal stopped in its evaluation is saved by the stop."""
        if self.saves(step) and self.progress.paused_step == step:
            self.training.checkpoints.save(self.training.to_saved(self.state), self.progress)
            self.count_elapsed("checkpoint")

    def count_elapsed(self, what: str, **fields: int) -> float:
        """Count the time since the last lap as elapsed, not as step time, and note its use."""
        self.training.beat()
        seconds = self.stopwatch.lap()
        self.waited = 0.0
        elapsed = self.progress.elapsed_seconds + seconds
        self.progress = replace(self.progress, elapsed_seconds=elapsed)
        self.training.events.write(what, step=self.progress.step, seconds=seconds, **fields)
        return seconds

    def evaluates(self, step: int) -> bool:
        has_rows = self.training.config.data.val_fraction > 0
        return has_rows and self.is_due(step, self.config.eval_every)

    def samples(self, step: int) -> bool:
        return self.is_due(step, self.config.sample_every)

    def saves(self, step: int) -> bool:
        every = self.training.config.checkpoint.every
        return step == self.config.steps or (step > 0 and every > 0 and step % every == 0)

    def is_due(self, step: int, every: int) -> bool:
        return every > 0 and (step % every == 0 or step == self.config.steps)

    def evaluate(self) -> bool:
        """Mean loss over the validation rows; False if a signal stopped it in between."""
        total = count = 0.0
        for batch in self.training.validation():
            self.training.agreement.exchange()
            self.training.agreement.read()
            if self.training.agreement.received:
                return False
            sums = self.training.eval_step(self.state.params, self.training.to_device(batch))
            loss_sum, num_tokens = jax.device_get(sums)
            self.training.beat()
            total, count = total + float(loss_sum), count + float(num_tokens)
        self.val_loss = total / count
        record = Record(
            step=self.progress.step,
            split="val",
            loss=self.val_loss,
            tokens=self.progress.num_tokens,
            elapsed_seconds=self.progress.elapsed_seconds,
        )
        for sink in self.training.sinks:
            sink.write(record)
        return True

    def target_reached(self) -> bool:
        target = self.config.target_loss
        return target is not None and self.val_loss is not None and self.val_loss <= target

    def stop_if_signalled(self) -> None:
        number = self.training.agreement.received
        if number is None:
            return
        self.save_now()
        raise InterruptedRunError(
            f"stopped by {signal.Signals(number).name} after step {self.progress.step}, which is "
            "saved; run the same command again to continue",
            signal_number=number,
        )

    def finish(self, reason: Literal["steps", "target_loss"]) -> FitResult:
        self.stop_if_signalled()
        self.save_now()
        return FitResult(reason=reason, progress=self.progress, val_loss=self.val_loss)

    def save_now(self) -> None:
        self.read_metrics()
        self.note_steps()
        self.training.checkpoints.save(self.training.to_saved(self.state), self.progress)
        self.training.checkpoints.wait()
        self.count_elapsed("checkpoint")

    def last_checkpoint(self) -> str:
        steps = self.training.checkpoints.steps()
        return f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint was due"
