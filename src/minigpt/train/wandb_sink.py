"""Records and samples for Weights & Biases; nothing of it is imported unless it is asked for."""

import importlib
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minigpt.config import Config
from minigpt.errors import ConfigError
from minigpt.train.record import Record

_ID_FILE = "wandb-id"


def load_wandb(project: str) -> Any:  # noqa: ANN401 - a module that may not be installed
    """The ``wandb`` package.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"run.wandb_project is {project!r}, but the package wandb is not installed "
            f"({error}): install the extra with `uv run --extra wandb minigpt train ...` or "
            "`pip install 'minigpt[wandb]'` (on every node), or leave run.wandb_project out"
        ) from error


class WandbSink:
    """Sends to a project; a run that continues goes on in the same run there."""

    def __init__(self, directory: Path, config: Config) -> None:
        """Begin, or go on with, the run of a run directory.

        Args:
            directory: of the run; wandb's own files are put there too.
            config: ``run.wandb_project`` is set.
        """
        assert config.run.wandb_project is not None
        self._wandb = load_wandb(config.run.wandb_project)
        self._run = self._wandb.init(
            project=config.run.wandb_project,
            name=config.run.name,
            id=_run_id(directory),
            resume="allow",
            dir=str(directory),
            config=asdict(config),
        )
        # Steps that are done again after a restart are sent again, so "step" is a value of ours:
        # wandb's own count of calls only rises.
        self._run.define_metric("*", step_metric="step")

    def write(self, record: Record) -> None:
        """Send the fields that are set, under the split's name."""
        fields = {name: value for name, value in asdict(record).items() if value is not None}
        step, split = fields.pop("step"), fields.pop("split")
        self._run.log({"step": step, **{f"{split}/{name}": fields[name] for name in fields}})

    def write_samples(self, step: int, samples: Sequence[tuple[str, str]]) -> None:
        """Send a table of the texts."""
        rows = [list(sample) for sample in samples]
        table = self._wandb.Table(columns=["prompt", "text"], data=rows)
        self._run.log({"step": step, "samples": table})

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


def _run_id(directory: Path) -> str:
    """Kept in the run directory, for restarts."""
    file = directory / _ID_FILE
    if not file.exists():
        file.write_text(uuid.uuid4().hex)
    return file.read_text()
