"""Generation from a run directory."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from minigpt.data.tokenizer import load_tokenizer
from minigpt.generate.sampler import Generator, SamplingConfig
from minigpt.train.checkpoint import Checkpoints
from minigpt.train.run_directory import RunDirectory
from minigpt.train.state import init_params, model_spec


def sample_run(
    run: Path, prompts: Sequence[str], settings: SamplingConfig, notify: Callable[[str], None]
) -> list[str]:
    """Continue prompts with the newest checkpoint of a run.

    Raises:
        CheckpointError: there is no run, or none of its checkpoints can be read.
    """
    directory = RunDirectory(run)
    config, _ = directory.read_config()
    tokenizer = load_tokenizer(config.data.tokenizer)
    spec = model_spec(config, tokenizer.vocab_size)
    target = jax.eval_shape(lambda: init_params(spec, 0))
    with Checkpoints(directory.checkpoints, keep=None) as checkpoints:
        params, progress = checkpoints.restore_params(target)
        newer = [step for step in checkpoints.steps() if step > progress.step]
    for step in newer:
        notify(f"{run}: the checkpoint of step {step} cannot be read; using an older one")
    notify(f"{run}: step {progress.step}")
    generator = Generator(spec, tokenizer, config.data.layout)
    return generator.generate(params, prompts, settings, notify)
