"""Training on one machine, in this process."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
from rich.console import Console

from minigpt.config import Config
from minigpt.data.batches import BatchReader
from minigpt.data.build import open_or_build
from minigpt.data.grain_source import GrainSource
from minigpt.data.store import TokenStore
from minigpt.data.tokenizer import load_tokenizer
from minigpt.generate.sampler import Generator, SamplingConfig
from minigpt.model.flops import num_parameters, train_flops_per_token
from minigpt.train.checkpoint import Checkpoints, Progress
from minigpt.train.console import ConsoleSink, byte_progress
from minigpt.train.hardware import peak_flops
from minigpt.train.loop import FitResult, Sampler, Training, fit
from minigpt.train.metrics import JsonlSink, Sink, TensorBoardSink
from minigpt.train.optimizer import make_optimizer
from minigpt.train.run_directory import RunDirectory
from minigpt.train.signals import StopSignals
from minigpt.train.state import Params, TrainState, init_state, model_spec
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
    with StopSignals() as signals:
        store = _open_data(config, console)
        resuming = directory.check_resume(config, store.corpus)
        with Checkpoints(directory.checkpoints, keep=config.checkpoint.keep) as checkpoints:
            state, progress = _start(config, store, checkpoints, console, resuming=resuming)
            directory.write_config(config, store.corpus)
            sinks = _open_sinks(config, directory, console, start_step=progress.step)
            try:
                training = _assemble(config, store, checkpoints, signals, console, sinks)
                return Outcome(directory, fit(training, state, progress))
            finally:
                for sink in sinks:
                    sink.close()


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
    store: TokenStore,
    checkpoints: Checkpoints,
    console: Console,
    *,
    resuming: bool,
) -> tuple[TrainState, Progress]:
    """The state to train from: new, or of the newest checkpoint."""
    spec = model_spec(config, load_tokenizer(config.data.tokenizer).vocab_size)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    state = init_state(spec, optimizer, config.train.seed)
    console.print(
        f"model: {num_parameters(config.model, spec.vocab_size):,} parameters, "
        f"{config.model.num_layers} layers of width {config.model.embed_dim}, compute in "
        f"{config.train.compute_dtype} on {jax.devices()[0].device_kind}",
    )
    if not resuming:
        return state, Progress()
    restored = checkpoints.restore(state)
    for step in restored.unreadable:
        console.print(
            f"the checkpoint of step {step} cannot be read and was moved to "
            f"{checkpoints.directory}-unreadable",
        )
    console.print(f"continuing after step {restored.progress.step}")
    return restored.state, restored.progress


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
        train_step=make_train_step(config, spec),
        eval_step=make_eval_step(spec),
        source=GrainSource(reader),
        validation=partial(reader.validation, config.train.eval_rows),
        to_device=jax.device_put,
        sampler=_sampler(config, Generator(spec, tokenizer, config.data.layout)),
        checkpoints=checkpoints,
        sinks=sinks,
        signals=signals,
        notify=console.print,
        flops_per_token=train_flops_per_token(config.model, spec.vocab_size),
        peak_flops=peak,
    )


def _sampler(config: Config, generator: Generator) -> Sampler:
    """Continues the same prompts with the same seed each time, so that samples compare."""
    settings = SamplingConfig(max_tokens=min(80, config.model.seq_length), seed=config.train.seed)

    def sample(params: Params) -> list[tuple[str, str]]:
        texts = generator.generate(params, SAMPLE_PROMPTS, settings)
        return list(zip(SAMPLE_PROMPTS, texts, strict=True))

    return sample
