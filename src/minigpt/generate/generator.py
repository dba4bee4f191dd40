"""Texts that continue prompts."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Literal

from jax.sharding import Mesh

from minigpt.data.tokenizer import Tokenizer
from minigpt.generate.engine import MIN_ROWS, Engine
from minigpt.generate.programs import Programs
from minigpt.generate.sampling import SamplingConfig
from minigpt.generate.text import Continuation, Piece
from minigpt.model.gpt import GPTSpec
from minigpt.train.restore import RestoredRun
from minigpt.train.state import Params

MAX_ROWS = 64
"""Of more prompts the others wait."""


class Generator:
    """A model with its tokenizer, ready to continue text; compiled programs are kept."""

    def __init__(
        self,
        spec: GPTSpec,
        tokenizer: Tokenizer,
        layout: Literal["packed", "padded"],
        mesh: Mesh | None = None,
    ) -> None:
        """Compile nothing yet.

        Args:
            spec: the model.
            tokenizer: its tokenizer.
            layout: of its training rows. In packed ones every story follows an end-of-text, so
                prompts do too; in padded ones none does.
            mesh: where its parameters lie; None: on one device.
        """
        self._tokenizer = tokenizer
        self._window = spec.model.seq_length
        self._rows_follow_end_of_text = layout == "packed"
        self._programs = cache(lambda rows: Programs(spec, mesh, rows))

    @classmethod
    def of(cls, restored: RestoredRun) -> "Generator":
        """Of a run's model, on the mesh that it was restored to."""
        layout, mesh = restored.config.data.layout, restored.layout.mesh
        return cls(restored.spec, restored.tokenizer, layout, mesh)

    def engine(self, params: Params, rows: int) -> Engine:
        """Room for so many texts at once."""
        return Engine(self._programs(max(rows, MIN_ROWS)), params)

    def continuation(self, prompt: str, config: SamplingConfig, number: int = 0) -> Continuation:
        """A prompt to be continued; an empty one starts a new story.

        Args:
            prompt: any text.
            config: how it is continued.
            number: texts of the same seed have different ones.
        """
        tokens = self._tokenizer.encode(prompt).tolist()
        if self._rows_follow_end_of_text or not tokens:
            tokens = [self._tokenizer.end_of_text, *tokens]
        return Continuation(self._tokenizer, tokens, config, number)

    def stream(
        self,
        params: Params,
        prompts: Sequence[str],
        config: SamplingConfig,
        notify: Callable[[str], None] = lambda _: None,
    ) -> Iterator[tuple[int, Piece]]:
        """Pieces of the texts that continue the prompts, each with the number of its prompt.

        A text does not depend on the other prompts.

        Args:
            params: parameters of the model, with layers ``[layers, ...]``.
            prompts: at least one.
            config: how tokens are chosen.
            notify: is handed one sentence for each thing worth knowing, once.
        """
        engine, notify = self.engine(params, min(len(prompts), MAX_ROWS)), lru_cache(notify)
        for number, prompt in enumerate(prompts):
            engine.add(self.continuation(prompt, config, number))
        while engine.busy:
            for text, piece in engine.step():
                if text.num_slides:
                    notify(
                        f"a text is longer than the model's context of {self._window} tokens: it "
                        f"goes on from its last {self._window // 2}"
                    )
                yield text.number, piece

    def generate(
        self,
        params: Params,
        prompts: Sequence[str],
        config: SamplingConfig,
        notify: Callable[[str], None] = lambda _: None,
    ) -> list[str]:
        """The texts of ``stream``, whole; without the prompts and without end-of-text."""
        texts = [""] * len(prompts)
        for number, piece in self.stream(params, prompts, config, notify):
            texts[number] += piece.text
        return texts
