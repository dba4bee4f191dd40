"""SIGTERM and Ctrl-C: stop at once while nothing can be lost, else at the next step.

With several processes, all of them must stop after the same step, whichever got the signal.
"""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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


class Agreement:
    """The signal that some process received, known to all after the same exchange.

    All processes must call ``exchange`` and ``read`` at the same places of their programs. One
    process has nobody to agree with: it sees its signals at once.
    """

    def __init__(self, signals: StopSignals, mesh: Mesh) -> None:
        """Between the processes whose devices make up ``mesh``."""
        self.signals = signals
        self._alone = jax.process_count() == 1
        self._agreed = 0
        self._exchanged: jax.Array | None = None
        self._split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._size = mesh.size
        self._largest = jax.jit(
            lambda values: values.max(), out_shardings=NamedSharding(mesh, PartitionSpec())
        )

    @property
    def received(self) -> int | None:
        """The signal's number; of what all processes have read, where there are several."""
        return self.signals.received if self._alone else self._agreed or None

    def exchange(self) -> None:
        """Start telling the others what this process has received, behind the running step."""
        if not self._alone:
            mine = np.full((1,), self.signals.received or 0, np.int32)
            values = jax.make_array_from_callback((self._size,), self._split, lambda _: mine)
            self._exchanged = self._largest(values)

    def read(self) -> None:
        """Wait for the exchange, if one was started."""
        if self._exchanged is not None:
            self._agreed = max(self._agreed, int(self._exchanged))
            self._exchanged = None
