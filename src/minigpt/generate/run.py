"""Generation from a run directory."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from minigpt.config import ParallelConfig
from minigpt.generate.generator import Generator
from minigpt.generate.sampling import SamplingConfig
from minigpt.generate.text import Piece
from minigpt.train.restore import restore_run


def sample_run(
    run: Path,
    prompts: Sequence[str],
    settings: SamplingConfig,
    parallel: ParallelConfig,
    notify: Callable[[str], None],
) -> Iterator[tuple[int, Piece]]:
    """Continue prompts with the newest checkpoint of a run, as ``Generator.stream`` does.

    Raises:
        CheckpointError: there is no run, or none of its checkpoints can be read.
        ConfigError: the mesh does not fit the devices or the model.
    """
    restored = restore_run(run, parallel, notify)
    notify(f"{run}: step {restored.progress.step}")
    yield from Generator.of(restored).stream(restored.params, prompts, settings, notify)
