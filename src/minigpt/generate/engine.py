"""Continues many texts together: each joins when a row is free, and leaves when it has ended."""

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from minigpt.generate.programs import Draws, Programs, Prompts, Texts
from minigpt.generate.sampling import Drawn, SamplingConfig, Settings
from minigpt.generate.text import Choice, Continuation, Piece
from minigpt.train.state import Params

MIN_ROWS = 2
"""XLA:CPU multiplies one row of bfloat16 by a matrix several times slower than two."""
_MIN_WIDTH, _MIN_VISIBLE = 16, 64
_PREFILL_TOKENS = 2048  # more at once would keep the other texts waiting
_UNUSED = SamplingConfig(temperature=0)


class Engine:
    """The rows of a model, and the texts in them.

    Shapes are rounded up, to powers of 4, and of 2 for the positions that are attended to, so that
    few programs are compiled.
    """

    def __init__(self, programs: Programs, params: Params) -> None:
        """With no text yet.

        Args:
            programs: of the model.
            params: its parameters, with layers ``[layers, ...]``.
        """
        self._programs, self._window = programs, programs.window
        self._params = programs.ready(params)
        self._texts: Texts = programs.empty()
        self._rows: list[Continuation | None] = [None] * programs.rows
        self._waiting: list[Continuation] = []

    @property
    def busy(self) -> bool:
        """Whether a text is to be continued."""
        return bool(self._waiting) or any(self._rows)

    def add(self, text: Continuation) -> None:
        """Continue a text as soon as there is a row for it."""
        self._waiting.append(text)

    def remove(self, text: Continuation) -> None:
        """Forget a text; nothing where it has ended."""
        self._rows = [None if other is text else other for other in self._rows]
        self._waiting = [other for other in self._waiting if other is not text]

    def step(self) -> list[tuple[Continuation, Piece]]:
        """One more token: for texts that join or have outgrown the window, else for all.

        A text that has outgrown the window goes on from its newer half.
        """
        self._seat()
        seated = [(row, text) for row, text in enumerate(self._rows) if text]
        for _, text in seated:
            text.slide(self._window)
        if fresh := [(row, text) for row, text in seated if not text.is_read]:
            fresh, batch, width = self._read_together(fresh)
            drawn = self._prefill(fresh, batch, width)
            pieces = [self._accept(drawn, place, text) for place, (_, text) in enumerate(fresh)]
        elif seated:
            batch = _round_up(seated[-1][0] + 1, MIN_ROWS, len(self._rows))
            longest = max(len(text.context) for _, text in seated)
            visible = next(size for size in self._visible_sizes() if size >= longest)
            drawn = self._decode(self._rows[:batch], visible)
            pieces = [self._accept(drawn, row, text) for row, text in seated]
        else:
            pieces = []
        self._rows = [None if text and text.reason else text for text in self._rows]
        return pieces

    def compile_all(self) -> None:
        """Compile whatever ``step`` may need, so that no text has to wait for it."""
        for batch in _sizes(MIN_ROWS, len(self._rows)):
            for width in _sizes(_MIN_WIDTH, self._window):
                if _may_be_read(batch, width):
                    self._prefill([], batch, width)
            for visible in self._visible_sizes():
                self._decode([None] * batch, visible)

    def _visible_sizes(self) -> Iterator[int]:
        return _sizes(_MIN_VISIBLE, self._window, 2)

    def _seat(self) -> None:
        """Give the lowest free rows to the texts that have waited longest."""
        for row, text in enumerate(self._rows):
            if text is None and self._waiting:
                self._rows[row] = self._waiting.pop(0)

    def _read_together(
        self, fresh: list[tuple[int, Continuation]]
    ) -> tuple[list[tuple[int, Continuation]], int, int]:
        """The first of the texts, as many as may be read at once; the batch and the width."""
        for number in range(len(fresh), 0, -1):
            longest = max(len(text.context) for _, text in fresh[:number])
            batch = _round_up(number, MIN_ROWS, len(self._rows))
            width = _round_up(longest, _MIN_WIDTH, self._window)
            if _may_be_read(batch, width):
                return fresh[:number], batch, width
        raise AssertionError("one text may always be read")

    def _prefill(self, fresh: list[tuple[int, Continuation]], batch: int, width: int) -> Drawn:
        rows = np.full(batch, len(self._rows), np.int32)
        lengths = np.ones(batch, np.int32)
        tokens = np.zeros((batch, width), np.int32)
        seen = np.zeros((batch, self._texts.seen.shape[1]), bool)
        for place, (row, text) in enumerate(fresh):
            rows[place], lengths[place] = row, len(text.context)
            tokens[place, : len(text.context)] = text.context
            seen[place, list(text.known)] = True
            text.is_read = True
        draws = _draws([text for _, text in fresh], batch)
        self._texts, drawn = self._programs.prefill(
            self._params, self._texts, Prompts(rows, tokens, lengths, seen), draws
        )
        return jax.device_get(drawn)

    def _decode(self, texts: Sequence[Continuation | None], visible: int) -> Drawn:
        """The next token of the texts in the first rows, all of which are in the cache."""
        tokens = np.array([text.context[-1] if text else 0 for text in texts], np.int32)
        positions = np.array([len(text.context) - 1 if text else 0 for text in texts], np.int32)
        self._texts, drawn = self._programs.decode(
            self._params, self._texts, tokens, positions, _draws(texts, len(texts)), visible=visible
        )
        return jax.device_get(drawn)

    @staticmethod
    def _accept(drawn: Drawn, place: int, text: Continuation) -> tuple[Continuation, Piece]:
        candidates = zip(
            drawn.candidates[place].tolist(), drawn.candidate_logprobs[place].tolist(), strict=True
        )
        choice = Choice(int(drawn.tokens[place]), float(drawn.logprobs[place]), tuple(candidates))
        return text, text.accept(choice)


def _sizes(least: int, most: int, growth: int = 4) -> Iterator[int]:
    """``least`` times powers of ``growth``, and ``most``."""
    while least < most:
        yield least
        least *= growth
    yield most


def _round_up(size: int, least: int, most: int) -> int:
    return next(rounded for rounded in _sizes(least, most) if rounded >= size)


def _may_be_read(batch: int, width: int) -> bool:
    return batch == MIN_ROWS or batch * width <= _PREFILL_TOKENS


def _draws(texts: Sequence[Continuation | None], batch: int) -> Draws:
    """Of texts in a batch; the places without one draw what costs nothing."""
    places = [*texts, *[None] * (batch - len(texts))]
    configs = [text.config if text else _UNUSED for text in places]

    def array(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(config, name) for config in configs], dtype)

    return Draws(
        seeds=array("seed", np.uint32),
        numbers=np.array([text.number if text else 0 for text in places], np.uint32),
        steps=np.array([text.num_drawn if text else 0 for text in places], np.uint32),
        settings=Settings(
            temperature=array("temperature", np.float32),
            top_k=array("top_k", np.int32),
            top_p=array("top_p", np.float32),
            repetition_penalty=array("repetition_penalty", np.float32),
        ),
    )
