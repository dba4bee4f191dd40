"""A text that grows token by token."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from minigpt.data.tokenizer import Tokenizer
from minigpt.generate.sampling import SamplingConfig

Reason = Literal["stop", "length"]
"""Why a text ended: at end-of-text or a stop text, or with ``max_tokens`` tokens."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that was drawn, and the most likely ones, with the model's log probabilities."""

    token: int
    logprob: float
    candidates: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """What a token adds to a text: nothing where it ends in the middle of a character."""

    text: str
    choice: Choice
    reason: Reason | None
    """None: the text goes on."""


class Continuation:
    """A prompt and what has been drawn after it."""

    def __init__(
        self, tokenizer: Tokenizer, context: Sequence[int], config: SamplingConfig, number: int = 0
    ) -> None:
        """Nothing drawn yet.

        Args:
            tokenizer: of the model.
            context: tokens of the prompt, at least one.
            config: how it is continued.
            number: texts of the same seed have different ones.
        """
        self.config, self.number = config, number
        self.context = list(context)
        """Tokens that the model is given; the oldest are cut off when they are too many."""
        self.known = set(context)
        """Tokens of the whole text."""
        self.num_drawn = 0
        self.num_slides = 0
        self.is_read = False
        """Whether the keys and values of the context, but for its last token, are in a row."""
        self.reason: Reason | None = None
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # what may be the beginning of a stop text

    def slide(self, window: int) -> None:
        """Where the context is longer than the window, go on from what fits into half of it."""
        if len(self.context) > window:
            self.context = self.context[-(window // 2) :]
            self.num_slides += 1
            self.is_read = False

    def accept(self, choice: Choice) -> Piece:
        """Take the next token; what of the text is certain now."""
        self.num_drawn += 1
        self.context.append(choice.token)
        self.known.add(choice.token)
        ended = choice.token == self._tokenizer.end_of_text
        if ended:
            self.reason = "stop"
        elif self.num_drawn == self.config.max_tokens:
            self.reason = "length"
        data = b"" if ended else self._tokenizer.token_bytes(choice.token)
        text = self._held + self._decoder.decode(data, final=self.reason is not None)
        places = [place for stop in self.config.stop if (place := text.find(stop)) >= 0]
        if places:
            self.reason, text = "stop", text[: min(places)]
        held = 0 if self.reason else self._unsettled(text)
        self._held = text[len(text) - held :]
        return Piece(text[: len(text) - held], choice, self.reason)

    def _unsettled(self, text: str) -> int:
        """Characters at the end that are the beginning of a stop text."""
        longest = max(map(len, self.config.stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self.config.stop):
                return length
        return 0
