"""Checkpoints through Orbax: atomic, asynchronous, and never started over by accident."""

import itertools
import json
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from minigpt.errors import CheckpointError
from minigpt.train.state import Params, TrainState

SIZES_FILE = "sizes.json"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the host knows about a run at a checkpoint."""

    step: int = 0
    num_tokens: int = 0
    """Valid targets trained on so far."""
    elapsed_seconds: float = 0.0
    """Time in the training loop so far, over all restarts."""
    paused_step: int = -1
    """Step after which evaluation and samples were last completed, where they were due."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was read, and the steps of newer ones that could not be."""

    state: TrainState
    progress: Progress
    unreadable: tuple[int, ...]


class Checkpoints:
    """The checkpoints of one run, ``DIRECTORY/STEP``; a context manager that waits for saves."""

    def __init__(
        self,
        directory: Path,
        *,
        keep: int | None,
        on_saved: Callable[[int, Path], None] = lambda step, directory: None,
    ) -> None:
        """Open the folder, creating it if need be.

        Args:
            directory: of the checkpoints of one run.
            keep: the newest so many stay; None: all.
            on_saved: called with the step and its folder when a checkpoint is on disk.
        """
        self._on_saved = on_saved
        self.directory = directory.resolve()
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager = ocp.CheckpointManager(self.directory, options=options)
        self._saving: int | None = None

    def __enter__(self) -> "Checkpoints":
        """Nothing more to open."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for a running save and release Orbax's threads."""
        if kind is not None:  # the other processes may not be here: nobody is told of the save
            self._on_saved = lambda step, directory: None
        try:
            self.wait()
        finally:
            with self._explained_errors():
                self._manager.close()

    def steps(self) -> list[int]:
        """Steps of complete checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def agreed_step(self) -> int | None:
        """The newest complete step, if any, as all processes see it.

        Raises:
            CheckpointError: they see different folders.
        """
        newest = (self.steps() or [-1])[-1]
        seen = np.ravel(multihost_utils.process_allgather(np.int32(newest))).tolist()
        if len(set(seen)) > 1:
            listed = ", ".join(
                f"process {number}: {'none' if step < 0 else f'step {step}'}"
                for number, step in enumerate(seen)
            )
            raise CheckpointError(
                f"the processes see different checkpoints in {str(self.directory)!r} ({listed}): "
                "the folder must be on storage that all nodes share"
            )
        return None if newest < 0 else newest

    def save(self, state: TrainState, progress: Progress) -> None:
        """Start saving; returns when the state may be overwritten, not when it is on disk.

        Raises:
            CheckpointError: this or an earlier save failed; older checkpoints are untouched.
        """
        self.wait()
        if progress.step in self.steps():
            return
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            opt_state=ocp.args.StandardSave(state.opt_state),
            progress=ocp.args.JsonSave(asdict(progress)),
        )
        with self._explained_errors():
            self._manager.save(progress.step, args=items)
        self._saving = progress.step

    def wait(self) -> None:
        """Wait until the running save is on disk.

        Raises:
            CheckpointError: it failed.
        """
        step, self._saving = self._saving, None
        if step is not None:
            with self._explained_errors():
                self._manager.wait_until_finished()
                if jax.process_index() == 0:
                    _write_sizes(self.directory / str(step))
            self._on_saved(step, self.directory / str(step))

    @contextmanager
    def _explained_errors(self) -> Generator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:  # what Orbax and TensorStore raise
            steps = self.steps()
            kept = f"the checkpoint of step {steps[-1]} is intact" if steps else "there is no other"
            free = shutil.disk_usage(self.directory).free
            reason = root_cause(error)
            raise CheckpointError(
                f"a checkpoint could not be saved in {str(self.directory)!r}: {reason}; "
                f"{kept}. {free / 2**20:.0f} MiB are free there: make room (or set "
                "checkpoint.keep lower) and run the same command again to continue"
            ) from error

    def restore(self, target: TrainState) -> Restored:
        """The newest checkpoint that can be read.

        Newer ones that cannot be read are moved to ``DIRECTORY-unreadable``, never deleted, so
        that their steps can be saved again.

        Args:
            target: shapes, dtypes and shardings to restore to.

        Raises:
            CheckpointError: none can be read.
        """
        items, unreadable = self._read_newest(
            params=ocp.args.StandardRestore(target.params),
            opt_state=ocp.args.StandardRestore(target.opt_state),
        )
        for step in unreadable:
            self._set_aside(step)
        progress = Progress(**items["progress"])
        step = jax.device_put(np.int32(progress.step), target.step.sharding)
        state = TrainState(step, items["params"], items["opt_state"])
        return Restored(state, progress, unreadable)

    def restore_params(self, target: Params) -> tuple[Params, Progress]:
        """Parameters alone, of the newest checkpoint that can be read; changes nothing on disk.

        Raises:
            CheckpointError: none can be read.
        """
        items, _ = self._read_newest(params=ocp.args.StandardRestore(target))
        return items["params"], Progress(**items["progress"])

    def _read_newest(
        self, **targets: ocp.args.CheckpointArgs
    ) -> tuple[Mapping[str, Any], tuple[int, ...]]:
        """Items of the newest readable checkpoint, and the steps of newer, unreadable ones."""
        reasons: dict[int, str] = {}
        for step in reversed(self.steps()):
            wanted = ocp.args.Composite(progress=ocp.args.JsonRestore(), **targets)
            try:
                _check_sizes(self.directory / str(step))
                items = self._manager.restore(step, args=wanted)
                return cast("Mapping[str, Any]", items), tuple(reasons)
            except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
                reasons[step] = root_cause(error)
        if not reasons:
            raise CheckpointError(f"there is no complete checkpoint in {str(self.directory)!r}")
        details = "; ".join(f"step {step}: {reason}" for step, reason in reasons.items())
        raise CheckpointError(
            f"none of the {len(reasons)} checkpoints in {str(self.directory)!r} can be read "
            f"({details}). Nothing was changed: restore them from a copy, or start a new run "
            "with another --run.name"
        )

    def _set_aside(self, step: int) -> None:
        if jax.process_index() == 0:
            folder = self.directory.with_name(self.directory.name + "-unreadable")
            folder.mkdir(exist_ok=True)
            names = (str(step) if n == 1 else f"{step}.{n}" for n in itertools.count(1))
            target = next(folder / name for name in names if not (folder / name).exists())
            shutil.move(self.directory / str(step), target)
        multihost_utils.sync_global_devices(f"set aside {step}")
        self._manager.reload()


def _write_sizes(checkpoint: Path) -> None:
    """Note the size of every file, so that a truncated one is found before it is read."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    sizes = {str(path.relative_to(checkpoint)): path.stat().st_size for path in files}
    (checkpoint / SIZES_FILE).write_text(json.dumps(sizes, indent=0))


def _check_sizes(checkpoint: Path) -> None:
    """Compare with the noted sizes, where the save had time to note them.

    Raises:
        OSError: a file is missing or has another size.
    """
    noted = checkpoint / SIZES_FILE
    if not noted.exists():
        return
    for name, size in json.loads(noted.read_text()).items():
        path = checkpoint / name
        found = path.stat().st_size if path.exists() else None
        if found != size:
            raise OSError(f"{name} has {found} bytes, {size} were written")


def root_cause(error: BaseException) -> str:
    """The first line of the error at the beginning of the chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = lines[0]
    return text if len(text) <= 300 else f"{text[:120]} ... {text[-160:]}"
