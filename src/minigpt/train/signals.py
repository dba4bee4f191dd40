"""SIGTERM and Ctrl-C: stop at once while nothing can be lost, else at the next step."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from minigpt.errors import InterruptedRunError


class StopSignals:
    """Holds the handlers while it is entered.

    Outside ``deferred()`` a signal raises ``InterruptedRunError`` at once. Inside, it is
    remembered in ``received`` and the loop looks; a second Ctrl-C raises all the same.
    """

    def __init__(self) -> None:
        """No signal yet."""
        self.received: int | None = None
        self._deferred = False

    def __enter__(self) -> "StopSignals":
        """Install the handlers (main thread only)."""
        self._previous = {
            number: signal.signal(number, self._handle)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(self, *_: object) -> None:
        """Put the former handlers back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Generator[None]:
        """Remember signals instead of raising."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        again = self.received == number == signal.SIGINT
        self.received = number
        if again or not self._deferred:
            raise InterruptedRunError(
                f"stopped by {signal.Signals(number).name}", signal_number=number
            )
