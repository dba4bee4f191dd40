"""One process's part of a run, from the token store to the last step.

The same on a laptop and in each process of a cluster; what differs is who starts it and where
batches come from.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypedDict

import jax
from rich.console import Console

from minigpt.config import Config
from minigpt.data.batches import Batch, BatchReader, BatchSource
from minigpt.data.store import TokenStore
from minigpt.data.tokenizer import load_tokenizer
from minigpt.errors import ConfigError, DataError
from minigpt.generate.sampler import Generator, SamplingConfig
from minigpt.model.flops import num_parameters, train_flops_per_token
from minigpt.parallel.mesh import make_mesh, mesh_shape, picture
from minigpt.parallel.rows import global_batch, groups_that_differ, held_rows
from minigpt.parallel.schedule import Schedule
from minigpt.train.checkpoint import Checkpoints, Progress
from minigpt.train.console import ConsoleSink
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

SAMPLE_PROMPTS = ("Once upon a time", "One day, a little girl")


def train_in_process(
    config: Config,
    store: TokenStore,
    make_source: Callable[[BatchReader], BatchSource],
    signals: StopSignals,
    console: Console,
) -> FitResult:
    """Build or restore the state and train; every process of the runtime calls this.

    Process 0 writes the run directory and speaks.

    Args:
        config: the run; ``RunDirectory.check_resume`` has accepted it.
        store: the tokens.
        make_source: batches for a reader of the rows that this process holds.
        signals: entered by the caller.
        console: silent in all processes but the first.

    Raises:
        MiniGPTError: as ``minigpt.train.loop.fit``.
    """
    directory = RunDirectory.of(config)
    layout = lay_out(config, console)
    with Checkpoints(directory.checkpoints, keep=config.checkpoint.keep) as checkpoints:
        state, progress = _start(config, layout, checkpoints, console)
        leads = jax.process_index() == 0
        if leads:
            directory.write_config(config, store.corpus)
        sinks = _open_sinks(config, directory, console, progress.step) if leads else ()
        mesh, num_rows = layout.mesh, config.train.global_batch_size
        reader = BatchReader(
            store=store,
            batch_size=num_rows,
            seed=config.train.seed,
            shuffle=config.data.shuffle,
            held=tuple(held_rows(mesh, num_rows).tolist()),
        )
        try:
            training = Training(
                config=config,
                source=make_source(reader),
                validation=partial(reader.validation, config.train.eval_rows),
                to_device=lambda batch: global_batch(mesh, batch, num_rows),
                check_peers=partial(_check_peers, layout),
                to_saved=layout.save,
                checkpoints=checkpoints,
                sinks=sinks,
                agreement=Agreement(signals, mesh),
                notify=console.print,
                **_programs(config, layout, console),
            )
            return fit(training, state, progress)
        finally:
            for sink in sinks:
                sink.close()


def lay_out(config: Config, console: Console) -> StateLayout:
    """The mesh, shown where there is more than one device.

    Raises:
        ConfigError: the devices or the batch cannot be divided as configured.
    """
    parallel = config.parallel
    shape = mesh_shape(parallel, jax.device_count())
    if config.train.global_batch_size % (shape[1] * parallel.microbatches):
        # The rule of Config, now that parallel.data is known.
        replace(config, parallel=replace(parallel, data=shape[1]))
    mesh = make_mesh(shape)
    unused = jax.device_count() - mesh.size
    if unused and jax.process_count() > 1:
        raise ConfigError(
            f"parallel.pipe x parallel.data x parallel.model must use all devices of all "
            f"processes: {' x '.join(map(str, shape))} = {mesh.size} of {jax.device_count()}; "
            "use parallel.data -1 for what is left"
        )
    if jax.device_count() > 1:
        console.print(
            picture(
                mesh,
                num_layers=config.model.num_layers,
                interleave=parallel.interleave,
                batch_size=config.train.global_batch_size,
            )
        )
    if unused:
        console.print(f"mesh: {unused} of {jax.device_count()} devices are not used")
    if shape[0] > 1:
        schedule = Schedule(parallel.schedule, shape[0], parallel.interleave, parallel.microbatches)
        console.print(
            f"pipeline: {parallel.schedule}, {parallel.microbatches} microbatches, "
            f"{schedule.num_ticks} ticks, {100 * schedule.bubble:.0f} % of the time idle"
        )
    return StateLayout(mesh, interleave=parallel.interleave, zero=parallel.zero == 1)


def _start(
    config: Config, layout: StateLayout, checkpoints: Checkpoints, console: Console
) -> tuple[TrainState, Progress]:
    """The state to train from: new, or of the newest checkpoint."""
    spec = model_spec(config, load_tokenizer(config.data.tokenizer).vocab_size)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    console.print(
        f"model: {num_parameters(config.model, spec.vocab_size):,} parameters, "
        f"{config.model.num_layers} layers of width {config.model.embed_dim}, compute in "
        f"{config.train.compute_dtype} on {jax.devices()[0].device_kind}",
    )
    if checkpoints.agreed_step() is None:
        return init_state(spec, optimizer, config.train.seed, layout), Progress()
    restored = checkpoints.restore(layout.saved_target(state_shapes(spec, optimizer, layout)))
    for step in restored.unreadable:
        console.print(
            f"the checkpoint of step {step} cannot be read and was moved to "
            f"{checkpoints.directory}-unreadable",
        )
    console.print(f"continuing after step {restored.progress.step}")
    return layout.load(restored.state), restored.progress


def _open_sinks(
    config: Config, directory: RunDirectory, console: Console, start_step: int
) -> Sequence[Sink]:
    return (
        JsonlSink(directory.path, start_step=start_step),
        TensorBoardSink(directory.tensorboard, start_step=start_step),
        ConsoleSink(console, steps=config.train.steps, start_step=start_step),
    )


class _Programs(TypedDict):
    """The part of ``Training`` that follows from the model and its layout."""

    train_step: jax.stages.Wrapped
    eval_step: jax.stages.Wrapped
    sampler: Sampler
    flops_per_token: int
    peak_flops: float | None


def _programs(config: Config, layout: StateLayout, console: Console) -> _Programs:
    tokenizer = load_tokenizer(config.data.tokenizer)
    spec = model_spec(config, tokenizer.vocab_size)
    peak, reason = peak_flops(config.train.peak_flops, config.train.compute_dtype)
    console.print(
        f"MFU: {reason if peak is None else f'against {peak:.3g} FLOP/s ({reason})'}; the FLOPs "
        "of a token are 6 x weights + 12 x layers x width x context",
    )
    return _Programs(
        train_step=make_train_step(config, spec, layout),
        eval_step=make_eval_step(config, spec, layout),
        sampler=_sampler(config, layout, Generator(spec, tokenizer, config.data.layout)),
        flops_per_token=train_flops_per_token(config.model, spec.vocab_size),
        peak_flops=None if peak is None else peak * layout.mesh.size,
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
