"""Text cut into windows in which every token is predicted once, for evaluation."""

import itertools
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int32
from numpy.typing import NDArray

from minigpt.data.batches import Batch
from minigpt.data.corpus import Corpus, ReadCounts
from minigpt.data.store import TOKEN_DTYPE
from minigpt.data.tokenizer import Tokenizer


class Window(NamedTuple):
    """Consecutive tokens of a stream, ``seq_length + 1`` of them or fewer at its end.

    Attributes:
        tokens: inputs are all but the last, targets all but the first.
        num_counted: targets within this many first tokens were in the window before.
    """

    tokens: NDArray[np.uint16]
    num_counted: int


class TextWindows:
    """The windows of a text; read once, after which its counts are complete.

    Packed, the text is one stream: end-of-text, then every story with end-of-text after it.
    Padded, each story is a stream of its own, with end-of-text after it, as in training's rows.
    The first token of a stream is no target. Windows start every ``stride`` tokens, from the first.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        layout: Literal["packed", "padded"],
        *,
        seq_length: int,
        stride: int,
    ) -> None:
        """Read nothing yet.

        Args:
            corpus: the text.
            tokenizer: makes its tokens.
            layout: of the rows that the model was trained on.
            seq_length: most inputs of a window.
            stride: tokens from the start of a window to that of the next, at most ``seq_length``.
        """
        self._corpus, self._tokenizer, self._packed = corpus, tokenizer, layout == "packed"
        self._row_length, self._stride = seq_length + 1, stride
        self.counts = ReadCounts()
        self.num_bytes = 0
        """UTF-8 bytes of the stories so far, without what separates them."""

    def batches(self, num_rows: int) -> Iterator[tuple[Batch, Int32[np.ndarray, " rows"]]]:
        """Windows as rows of a batch, and ``num_counted`` of each; the last batch is filled."""
        for windows in itertools.batched(self._windows(), num_rows):
            tokens = np.zeros((num_rows, self._row_length), np.int32)
            lengths, num_counted = np.zeros((2, num_rows), np.int32)
            for row, window in enumerate(windows):
                lengths[row], num_counted[row] = len(window.tokens), window.num_counted
                tokens[row, : lengths[row]] = window.tokens
            yield Batch(tokens, lengths), num_counted

    def _windows(self) -> Iterator[Window]:
        empty = np.empty(0, TOKEN_DTYPE)
        held, num_counted = empty, 1
        for tokens, ends in self._pieces_of_streams():
            held = np.append(held, tokens)
            while len(held) >= self._row_length:
                yield Window(held[: self._row_length], num_counted)
                held, num_counted = held[self._stride :], self._row_length - self._stride
            if ends:
                if len(held) > num_counted:
                    yield Window(held, num_counted)
                held, num_counted = empty, 1

    def _pieces_of_streams(self) -> Iterator[tuple[NDArray[np.uint16], bool]]:
        """Tokens in order, and whether a stream ends after them."""
        end_of_text = np.array([self._tokenizer.end_of_text], TOKEN_DTYPE)
        if self._packed:
            yield end_of_text, False
        for piece in self._corpus.pieces(self.counts):
            self.num_bytes += len(piece.text.encode())
            tokens = self._tokenizer.encode(piece.text)
            ended = np.append(tokens, end_of_text) if piece.last else tokens
            yield ended, piece.last and not self._packed
        if self._packed:
            yield end_of_text[:0], True
