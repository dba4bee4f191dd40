"""Runs from Hugging Face's folders, and folders from runs."""

from collections.abc import Callable
from pathlib import Path

import jax

from minigpt.config import Config, DataConfig, OptimizerConfig, ParallelConfig, RunConfig
from minigpt.huggingface.folder import read_gpt2, refuse_overwriting, write_gpt2
from minigpt.train.restore import restore_run, write_run

FINE_TUNING = OptimizerConfig(learning_rate=5e-5, min_learning_rate=5e-6)
"""Gentler than the defaults, which are for weights that were just drawn."""


def import_run(place: Path, run: Path) -> Config:
    """Make a run at step 0 of a GPT-2's weights, which ``train`` continues on any mesh.

    Args:
        place: a folder with ``config.json``, or a safetensors file beside one.
        run: the run directory to make.

    Returns:
        The configuration that was written.

    Raises:
        ConfigError: there is something in ``run``.
        CheckpointError: ``place`` cannot be read as a GPT-2.
    """
    refuse_overwriting(run)
    found = read_gpt2(place)
    config = Config(
        run=RunConfig(name=run.name, directory=str(run.parent)),
        data=DataConfig(tokenizer=found.tokenizer),  # pyright: ignore[reportArgumentType]
        model=found.model,
        optimizer=FINE_TUNING,
    )
    write_run(config, jax.device_put(found.params))
    return config


def export_run(run: Path, folder: Path, notify: Callable[[str], None]) -> int:
    """Write the newest checkpoint of a run for ``transformers``; returns its step.

    ``notify`` is told of newer checkpoints that cannot be read.

    Raises:
        CheckpointError: there is no run, or none of its checkpoints can be read.
        ConfigError: there is something in ``folder``.
    """
    restored = restore_run(run, ParallelConfig(data=1), notify)
    write_gpt2(folder, restored.params, restored.config.model, restored.tokenizer)
    return restored.progress.step
