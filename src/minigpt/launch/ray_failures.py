"""Tells the user what failed in a cluster, and what is left."""

from typing import Any

from ray.exceptions import RayTaskError
from ray.train import ControllerError, TrainingFailedError, UserCallback, WorkerGroupError

from minigpt.config import Config
from minigpt.train.checkpoint import root_cause
from minigpt.train.run_directory import RunDirectory


class FailureNotice(UserCallback):
    """Tells the user of a failure when it happens, before the restart; runs in Ray's controller."""

    def __init__(self, terminal: Any) -> None:  # noqa: ANN401 - an actor handle
        self._terminal = terminal

    def after_exception(
        self,
        run_context: Any,  # noqa: ANN401
        worker_exceptions: dict[int, Exception],
    ) -> None:
        """Of a group whose workers failed."""
        reasons = _reasons(worker_exceptions)
        self._terminal.tell.remote("failed", f"{reasons}; the group is started again if it may")


def _reasons(failures: dict[int, Exception]) -> str:
    return "; ".join(f"worker {rank}: {root_cause(e)}" for rank, e in sorted(failures.items()))


def why(error: TrainingFailedError) -> str:
    """What made workers fail, or kept them from starting."""
    if isinstance(error, WorkerGroupError):
        return _reasons(error.worker_failures)
    cause = error.controller_failure if isinstance(error, ControllerError) else error
    cause = cause.cause if isinstance(cause, RayTaskError) else cause
    return f"the workers could not be joined: {root_cause(cause)}"


def explain(error: TrainingFailedError, config: Config) -> str:
    """Why the run ended, and what is left of it."""
    if not isinstance(error, WorkerGroupError):
        return f"{why(error)}; {what_is_kept(config)}"
    return (
        f"the workers failed more than cluster.max_failures {config.cluster.max_failures} times; "
        f"the last time {why(error)}; {what_is_kept(config)}"
    )


def what_is_kept(config: Config) -> str:
    """Where the run can be continued."""
    newest = RunDirectory.of(config).newest_step()
    if newest is None:
        return "no checkpoint was due"
    return f"the checkpoint of step {newest} is kept: run the same command again to continue"
