"""Lets requests of an event loop share one engine, which works in a thread of its own."""

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial

from minigpt.errors import MiniGPTError
from minigpt.generate.engine import Engine
from minigpt.generate.text import Continuation, Piece

_Delivered = tuple[int, Piece] | MiniGPTError
_Command = Callable[[], None]


class Batcher:
    """Texts of many requests in the rows of an engine; a context manager that runs the thread."""

    def __init__(self, engine: Engine) -> None:
        """Of an engine that nobody else uses."""
        self._engine = engine
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._receivers: dict[Continuation, Callable[[Piece | MiniGPTError], None]] = {}
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._stopped = False
        self.failure: str | None = None
        """Why no text can be continued any more, if so."""

    def __enter__(self) -> "Batcher":
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread after the step it is in."""
        self._commands.put(self._stop)
        self._thread.join()

    async def pieces(self, texts: Sequence[Continuation]) -> AsyncGenerator[tuple[int, Piece]]:
        """Pieces of the texts as they are drawn, each with its place in ``texts``.

        Whoever stops reading, or is cancelled, frees the rows.

        Raises:
            MiniGPTError: the engine failed.
        """
        loop = asyncio.get_running_loop()
        delivered: asyncio.Queue[_Delivered] = asyncio.Queue()

        def deliver(place: int, what: Piece | MiniGPTError) -> None:
            item = what if isinstance(what, MiniGPTError) else (place, what)
            loop.call_soon_threadsafe(delivered.put_nowait, item)

        for place, text in enumerate(texts):
            self._commands.put(partial(self._add, text, partial(deliver, place)))
        going = len(texts)
        try:
            while going:
                item = await delivered.get()
                if isinstance(item, MiniGPTError):
                    raise item
                going -= item[1].reason is not None
                yield item
        finally:
            for text in texts if going else ():
                self._commands.put(partial(self._remove, text))

    def _work(self) -> None:
        while not self._stopped:
            if not self._engine.busy:
                self._commands.get()()  # waits for one
            while not self._commands.empty():
                self._commands.get()()
            try:
                for text, piece in self._engine.step():
                    self._receivers[text](piece)
                    if piece.reason:
                        del self._receivers[text]
            except Exception as error:  # noqa: BLE001 - the requests are told, and the next ones
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """What the engine holds on the devices is lost; every request is told."""
        self.failure = f"generation failed: {error}"
        for text, deliver in self._receivers.items():
            deliver(MiniGPTError(self.failure))
            self._engine.remove(text)
        self._receivers.clear()

    def _add(self, text: Continuation, deliver: Callable[[Piece | MiniGPTError], None]) -> None:
        if self.failure:
            deliver(MiniGPTError(self.failure))
            return
        self._receivers[text] = deliver
        self._engine.add(text)

    def _remove(self, text: Continuation) -> None:
        if self._receivers.pop(text, None):
            self._engine.remove(text)

    def _stop(self) -> None:
        self._stopped = True
