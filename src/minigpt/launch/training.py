"""One process's part of a run, from the token store to the last step.

The same on a laptop and in each process of a cluster; what differs is who starts it and where
batches come from.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import jax

from minigpt.config import Config
from minigpt.data.batches import Batch, BatchReader, BatchSource
from minigpt.data.store import TokenStore
from minigpt.data.tokenizer import load_tokenizer
from minigpt.errors import ConfigError, DataError
from minigpt.generate.generator import Generator
from minigpt.generate.sampling import SamplingConfig
from minigpt.launch.environment import run_facts
from minigpt.launch.runtime import keep_programs
from minigpt.model.flops import num_parameters, train_flops_per_token
from minigpt.parallel.mesh import make_mesh, mesh_shape, picture
from minigpt.parallel.rows import global_batch, groups_that_differ, held_rows
from minigpt.parallel.schedule import Schedule
from minigpt.train.checkpoint import Checkpoints, Progress
from minigpt.train.events import EventLog
from minigpt.train.hardware import peak_flops
from minigpt.train.loop import FitResult, Sampler, Training, fit
from minigpt.train.metrics import JsonlSink, Sink, TensorBoardSink
from minigpt.train.optimizer import make_optimizer
from minigpt.train.run_directory import RunDirectory
from minigpt.train.signals import Agreement, StopSignals
from minigpt.train.state import (
    Params,
    StateLayout,
    TrainState,
    init_state,
    model_spec,
    state_shapes,
)
from minigpt.train.step import make_eval_step, make_train_step
from minigpt.train.wandb_sink import WandbSink, load_wandb

SAMPLE_PROMPTS = ("Once upon a time", "One day, a little girl")


@dataclass(frozen=True)
class Outcome:
    """A finished run and how it ended."""

    directory: RunDirectory
    result: FitResult


@runtime_checkable
class Reporter(Sink, Protocol):
    """A sink that every process has, and that is told of checkpoints on disk."""

    def saved(self, step: int, directory: Path) -> None:
        """A checkpoint is complete."""
        ...


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a launcher gives to one process."""

    make_source: Callable[[BatchReader], BatchSource]
    """Batches for a reader of the rows that this process holds."""
    signals: StopSignals
    say: Callable[[str], None]
    """Shows a line; silent in all processes but the first."""
    views: Callable[[int], Sequence[Sink]]
    """Sinks that show a run that starts at a step; of the first process."""
    launcher: Literal["local", "ray"]
    launched: float
    """When the user's command began, in seconds since 1970."""
    reporter: Reporter | None = None
    beat: Callable[[], None] = lambda: None
    """Called when there was progress."""


def describe_data(store: TokenStore, say: Callable[[str], None], *, reused: bool) -> None:
    """Say what is trained on, and what of the text was left out."""
    counts, splits = store.counts, store.splits
    say(
        f"data: {counts['num_stories']:,} stories, {splits['train'].num_tokens:,} training tokens "
        f"in {splits['train'].num_rows:,} rows, {splits['val'].num_tokens:,} validation tokens "
        f"in {splits['val'].num_rows:,} rows ({'reused' if reused else 'stored in'} "
        f"{store.directory})",
    )
    for what, number in (
        ("empty stories were dropped", counts["num_empty"]),
        ("characters were not UTF-8 and were replaced", counts["num_replaced"]),
        (
            "stories were longer than a row and cut off",
            splits["train"].num_truncated_stories + splits["val"].num_truncated_stories,
        ),
    ):
        if number:
            say(f"data: {number:,} {what}")


def train_in_process(config: Config, store: TokenStore, surroundings: Surroundings) -> FitResult:
    """Build or restore the state and train; every process of the runtime calls this.

    The first process writes the run directory and speaks.

    Args:
        config: the run; ``RunDirectory.check_resume`` has accepted it.
        store: the tokens.
        surroundings: of this process.

    Raises:
        MiniGPTError: as ``minigpt.train.loop.fit``.
    """
    directory = RunDirectory.of(config)
    if config.run.wandb_project is not None:
        load_wandb(config.run.wandb_project)  # in all processes: they refuse together
    keep_programs(directory.path.parent / ".compiled")
    leads = jax.process_index() == 0
    layout = _lay_out(config, surroundings.say)
    reporter = surroundings.reporter
    on_saved = reporter.saved if reporter else lambda step, directory: None
    with (
        EventLog(
            directory.path if leads else None,
            launcher=surroundings.launcher,
            launched=surroundings.launched,
        ) as events,
        Checkpoints(
            directory.checkpoints, keep=config.checkpoint.keep, on_saved=on_saved
        ) as checkpoints,
    ):
        state, progress = _start(config, layout, checkpoints, surroundings.say)
        sinks = [reporter] if reporter else []
        if leads:
            directory.write_config(config, store.corpus)
            sinks += [
                JsonlSink(directory.path, start_step=progress.step),
                TensorBoardSink(directory.tensorboard, start_step=progress.step),
                *surroundings.views(progress.step),
            ]
            if config.run.wandb_project is not None:
                sinks.append(WandbSink(directory.path, config))
        try:
            training = _assemble(config, layout, store, surroundings, checkpoints, sinks, events)
            events.write("ready", step=progress.step, **run_facts(training, layout.mesh))
            result = fit(training, state, progress)
            events.ends_with(result.reason)
            return result
        finally:
            for sink in sinks:
                sink.close()


def resolve_mesh(
    config: Config, num_devices: int, *, use_all: bool = False
) -> tuple[int, int, int]:
    """(pipe, data, model) on so many devices; ``use_all``: none may be left over.

    Raises:
        ConfigError: the devices or the batch cannot be divided as configured.
    """
    parallel = config.parallel
    shape = mesh_shape(parallel, num_devices)
    if config.train.global_batch_size % (shape[1] * parallel.microbatches):
        # The rule of Config, now that parallel.data is known.
        replace(config, parallel=replace(parallel, data=shape[1]))
    if use_all and math.prod(shape) < num_devices:
        raise ConfigError(
            f"parallel.pipe x parallel.data x parallel.model must use all devices of all "
            f"processes: {' x '.join(map(str, shape))} = {math.prod(shape)} of {num_devices}; use "
            "parallel.data -1 for what is left"
        )
    return shape


def _lay_out(config: Config, say: Callable[[str], None]) -> StateLayout:
    """The mesh, shown where there is more than one device."""
    parallel = config.parallel
    together = jax.process_count() > 1
    mesh = make_mesh(resolve_mesh(config, jax.device_count(), use_all=together))
    unused = jax.device_count() - mesh.size
    if jax.device_count() > 1:
        say(
            picture(
                mesh,
                num_layers=config.model.num_layers,
                interleave=parallel.interleave,
                batch_size=config.train.global_batch_size,
            )
        )
    if unused:
        say(f"mesh: {unused} of {jax.device_count()} devices are not used")
    num_stages = mesh.shape["pipe"]
    if num_stages > 1:
        schedule = Schedule(
            parallel.schedule, num_stages, parallel.interleave, parallel.microbatches
        )
        say(
            f"pipeline: {parallel.schedule}, {parallel.microbatches} microbatches, "
            f"{schedule.num_ticks} ticks, {100 * schedule.bubble:.0f} % of the time idle"
        )
    return StateLayout(mesh, interleave=parallel.interleave, zero=parallel.zero == 1)


def _start(
    config: Config, layout: StateLayout, checkpoints: Checkpoints, say: Callable[[str], None]
) -> tuple[TrainState, Progress]:
    """The state to train from: new, or of the newest checkpoint."""
    spec = model_spec(config, load_tokenizer(config.data.tokenizer).vocab_size)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    say(
        f"model: {num_parameters(config.model, spec.vocab_size):,} parameters, "
        f"{config.model.num_layers} layers of width {config.model.embed_dim}, compute in "
        f"{config.train.compute_dtype} on {jax.devices()[0].device_kind}",
    )
    if checkpoints.agreed_step() is None:
        return init_state(spec, optimizer, config.train.seed, layout), Progress()
    restored = checkpoints.restore(layout.saved_target(state_shapes(spec, optimizer, layout)))
    for step in restored.unreadable:
        say(
            f"the checkpoint of step {step} cannot be read and was moved to "
            f"{checkpoints.directory}-unreadable",
        )
    say(f"continuing after step {restored.progress.step}")
    return layout.load(restored.state), restored.progress


def _assemble(
    config: Config,
    layout: StateLayout,
    store: TokenStore,
    surroundings: Surroundings,
    checkpoints: Checkpoints,
    sinks: Sequence[Sink],
    events: EventLog,
) -> Training:
    tokenizer = load_tokenizer(config.data.tokenizer)
    spec = model_spec(config, tokenizer.vocab_size)
    mesh, num_rows = layout.mesh, config.train.global_batch_size
    reader = BatchReader(
        store=store,
        batch_size=num_rows,
        seed=config.train.seed,
        shuffle=config.data.shuffle,
        held=tuple(held_rows(mesh, num_rows).tolist()),
    )
    peak, reason = peak_flops(config.train.peak_flops, config.train.compute_dtype)
    surroundings.say(
        f"MFU: {reason if peak is None else f'against {peak:.3g} FLOP/s ({reason})'}; the FLOPs "
        "of a token are 6 x weights + 12 x layers x width x context",
    )
    return Training(
        config=config,
        train_step=make_train_step(config, spec, layout),
        eval_step=make_eval_step(config, spec, layout),
        source=surroundings.make_source(reader),
        validation=partial(reader.validation, config.train.eval_rows),
        to_device=lambda batch: global_batch(mesh, batch, num_rows),
        check_peers=partial(_check_peers, layout),
        to_saved=layout.save,
        sampler=_sampler(config, layout, Generator(spec, tokenizer, config.data.layout, mesh)),
        checkpoints=checkpoints,
        sinks=sinks,
        events=events,
        agreement=Agreement(surroundings.signals, mesh),
        notify=surroundings.say,
        beat=surroundings.beat,
        flops_per_token=train_flops_per_token(config.model, spec.vocab_size),
        peak_flops=None if peak is None else peak * mesh.size,
    )


def _check_peers(layout: StateLayout, batch: Batch) -> None:
    if differing := groups_that_differ(layout.mesh, batch):
        raise DataError(
            "tensor and pipeline peers must hold the same rows, but those of data-parallel group "
            f"{', '.join(map(str, differing))} hold different ones in the first batch: the "
            "processes do not read the same token store; put it on storage that all nodes share"
        )


def _sampler(config: Config, layout: StateLayout, generator: Generator) -> Sampler:
    """Continues the same prompts with the same seed each time, so that samples compare."""
    settings = SamplingConfig(max_tokens=min(80, config.model.seq_length), seed=config.train.seed)

    def sample(params: Params) -> list[tuple[str, str]]:
        texts = generator.generate(layout.save(params), SAMPLE_PROMPTS, settings)
        return list(zip(SAMPLE_PROMPTS, texts, strict=True))

    return sample
