"""Training on one machine, in this process."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
from jax.sharding import NamedSharding
from rich.console import Console

from minigpt.config import Config
from minigpt.data.batches import BatchReader
from minigpt.data.build import open_or_build
from minigpt.data.grain_source import GrainSource
from minigpt.data.store import TokenStore
from minigpt.data.tokenizer import load_tokenizer
from minigpt.generate.sampler import Generator, SamplingConfig
from minigpt.model.flops import num_parameters, train_flops_per_token
from minigpt.parallel.mesh import make_mesh, mesh_shape, picture, use_virtual_devices
from minigpt.parallel.schedule import Schedule
from minigpt.parallel.sharding import BATCH
from minigpt.train.checkpoint import Checkpoints, Progress
from minigpt.train.console import ConsoleSink, byte_progress
from minigpt.train.hardware import peak_flops
from minigpt.train.loop import FitResult, Sampler, Training, fit
from minigpt.train.metrics import JsonlSink, Sink, TensorBoardSink
from minigpt.train.optimizer import make_optimizer
from minigpt.train.run_directory import RunDirectory
from minigpt.train.signals import StopSignals
from minigpt.train.state import Params, StateLayout, TrainState, init_state, model_spec
from minigpt.train.step import make_eval_step, make_train_step

SAMPLE_PROMPTS = ("Once upon a time", "One day, a little girl")


@dataclass(frozen=True)
class Outcome:
    """A finished run and how it ended."""

    directory: RunDirectory
    result: FitResult


def train(config: Config, console: Console) -> Outcome:
    """Prepare the data, build or restore the state, and train.

    Raises:
        MiniGPTError: the input is wrong, training became non-finite, a checkpoint could not be
            written, or a signal came; see ``minigpt.errors``.
    """
    directory = RunDirectory.of(config)
    use_virtual_devices(config.parallel)
    with StopSignals() as signals:
        store = _open_data(config, console)
        resuming = directory.check_resume(config, store.corpus)
        layout = _lay_out(config, console)
        with Checkpoints(directory.checkpoints, keep=config.checkpoint.keep) as checkpoints:
            state, progress = _start(config, layout, checkpoints, console, resuming=resuming)
            directory.write_config(config, store.corpus)
            sinks = _open_sinks(config, directory, console, start_step=progress.step)
            try:
                training = _assemble(config, layout, store, checkpoints, signals, console, sinks)
                return Outcome(directory, fit(training, state, progress))
            finally:
                for sink in sinks:
                    sink.close()


def _lay_out(config: Config, console: Console) -> StateLayout:
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
    if jax.device_count() > 1:
        console.print(
            picture(
                mesh,
                num_layers=config.model.num_layers,
                interleave=parallel.interleave,
                batch_size=config.train.global_batch_size,
            )
        )
        if unused := jax.device_count() - mesh.size:
            console.print(f"mesh: {unused} of {jax.device_count()} devices are not used")
    if shape[0] > 1:
        schedule = Schedule(parallel.schedule, shape[0], parallel.interleave, parallel.microbatches)
        console.print(
            f"pipeline: {parallel.schedule}, {parallel.microbatches} microbatches, "
            f"{schedule.num_ticks} ticks, {100 * schedule.bubble:.0f} % of the time idle"
        )
    return StateLayout(mesh, interleave=parallel.interleave, zero=parallel.zero == 1)


def _open_data(config: Config, console: Console) -> TokenStore:
    store, reused = open_or_build(config, byte_progress(console, "tokenising"))
    counts, splits = store.counts, store.splits
    console.print(
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
            console.print(f"data: {number:,} {what}")
    return store


def _start(
    config: Config,
    layout: StateLayout,
    checkpoints: Checkpoints,
    console: Console,
    *,
    resuming: bool,
) -> tuple[TrainState, Progress]:
    """The state to train from: new, or of the newest checkpoint."""
    spec = model_spec(config, load_tokenizer(config.data.tokenizer).vocab_size)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    state = init_state(spec, optimizer, config.train.seed, layout)
    console.print(
        f"model: {num_parameters(config.model, spec.vocab_size):,} parameters, "
        f"{config.model.num_layers} layers of width {config.model.embed_dim}, compute in "
        f"{config.train.compute_dtype} on {jax.devices()[0].device_kind}",
    )
    if not resuming:
        return state, Progress()
    restored = checkpoints.restore(layout.saved_target(state))
    for step in restored.unreadable:
        console.print(
            f"the checkpoint of step {step} cannot be read and was moved to "
            f"{checkpoints.directory}-unreadable",
        )
    console.print(f"continuing after step {restored.progress.step}")
    return layout.load(restored.state), restored.progress


def _open_sinks(
    config: Config, directory: RunDirectory, console: Console, *, start_step: int
) -> Sequence[Sink]:
    return (
        JsonlSink(directory.path, start_step=start_step),
        TensorBoardSink(directory.tensorboard, start_step=start_step),
        ConsoleSink(console, steps=config.train.steps, start_step=start_step),
    )


def _assemble(
    config: Config,
    layout: StateLayout,
    store: TokenStore,
    checkpoints: Checkpoints,
    signals: StopSignals,
    console: Console,
    sinks: Sequence[Sink],
) -> Training:
    tokenizer = load_tokenizer(config.data.tokenizer)
    spec = model_spec(config, tokenizer.vocab_size)
    reader = BatchReader(
        store=store,
        batch_size=config.train.global_batch_size,
        seed=config.train.seed,
        shuffle=config.data.shuffle,
    )
    peak, reason = peak_flops(config.train.peak_flops, config.train.compute_dtype)
    console.print(
        f"MFU: {reason if peak is None else f'against {peak:.3g} FLOP/s ({reason})'}; the FLOPs "
        "of a token are 6 x weights + 12 x layers x width x context",
    )
    return Training(
        config=config,
        train_step=make_train_step(config, spec, layout),
        eval_step=make_eval_step(config, spec, layout),
        source=GrainSource(reader),
        validation=partial(reader.validation, config.train.eval_rows),
        to_device=partial(jax.device_put, device=NamedSharding(layout.mesh, BATCH)),
        to_saved=layout.save,
        sampler=_sampler(config, layout, Generator(spec, tokenizer, config.data.layout)),
        checkpoints=checkpoints,
        sinks=sinks,
        signals=signals,
        notify=console.print,
        flops_per_token=train_flops_per_token(config.model, spec.vocab_size),
        peak_flops=None if peak is None else peak * layout.mesh.size,
    )


def _sampler(config: Config, layout: StateLayout, generator: Generator) -> Sampler:
    """Continues the same prompts with the same seed each time, so that samples compare."""
    settings = SamplingConfig(max_tokens=min(80, config.model.seq_length), seed=config.train.seed)

    def sample(params: Params) -> list[tuple[str, str]]:
        texts = generator.generate(layout.save(params), SAMPLE_PROMPTS, settings)
        return list(zip(SAMPLE_PROMPTS, texts, strict=True))

    return sample
