"""The errors a user can do something about.

Every message names the rule that was broken, the field or file, the values found and
what would work instead. The command line prints it without a traceback and exits with
``exit_code``.
"""

from functools import partial
from typing import Any


class MiniGPTError(Exception):
    """Base of every error that MiniGPT raises on purpose."""

    exit_code = 1


class ConfigError(MiniGPTError, ValueError):
    """The configuration or a combination of its fields is invalid."""

    exit_code = 2


class DataError(MiniGPTError, ValueError):
    """A text corpus, or what was built from it, cannot be used."""

    exit_code = 2


class CheckpointError(MiniGPTError):
    """A checkpoint cannot be written, read, or does not belong to this run."""

    exit_code = 2


class NonFiniteError(MiniGPTError):
    """The loss or the gradients stopped being finite."""

    exit_code = 3


class InterruptedRunError(MiniGPTError):
    """A signal asked the program to stop; ``exit_code`` is 128 plus its number."""

    def __init__(self, message: str, *, signal_number: int) -> None:
        """Keep the signal's number for the exit code."""
        super().__init__(message)
        self.exit_code = 128 + signal_number

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with the signal's number, for errors that come from other processes."""
        return partial(InterruptedRunError, signal_number=self.exit_code - 128), self.args
