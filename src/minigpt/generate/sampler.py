"""Sampling from a model: temperature, top-k, top-p, several prompts at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jaxtyping import Array, Float, Int

from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import ConfigError
from minigpt.model.decode import Cache, decode_step, prefill
from minigpt.model.gpt import GPT, GPTSpec
from minigpt.train.state import Params, model_graph

_MIN_WIDTH = 16
_NEW_TOKENS_MULTIPLE = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How the next token is chosen."""

    max_tokens: int = 200
    """New tokens for each prompt; a story may end sooner."""
    temperature: float = 0.8
    """Divides the logits; 0: always the most likely token."""
    top_k: int = 0
    """Choose among this many most likely tokens; 0: all."""
    top_p: float = 1.0
    """Choose among the most likely tokens that together have this probability."""
    seed: int = 0
    """The same seed, prompts and settings give the same text."""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        for name, valid, rule in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "at least 0 (0 is greedy)"),
            ("top_k", self.top_k >= 0, "at least 0 (0 is all tokens)"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1 (1 is all tokens)"),
            ("seed", 0 <= self.seed < 2**32, "at least 0 and below 2**32"),
        ):
            if not valid:
                raise ConfigError(f"{name} must be {rule}, got {getattr(self, name)}")


class Generator:
    """A model with its tokenizer, ready to continue text.

    Compiled programs are kept for each rounded shape.
    """

    def __init__(
        self, spec: GPTSpec, tokenizer: Tokenizer, layout: Literal["packed", "padded"]
    ) -> None:
        """Compile nothing yet.

        Args:
            spec: the model.
            tokenizer: its tokenizer.
            layout: of its training rows. In packed ones every story follows an end-of-text, so
                prompts do too; in padded ones none does.
        """
        self._tokenizer = tokenizer
        self._window = spec.model.seq_length
        self._rows_follow_end_of_text = layout == "packed"
        self._run = jax.jit(partial(_generate, model_graph(spec)), static_argnames="config")

    def generate(
        self,
        params: Params,
        prompts: Sequence[str],
        config: SamplingConfig,
        notify: Callable[[str], None] = lambda _: None,
    ) -> list[str]:
        """Texts that continue the prompts, without the prompts and without end-of-text.

        An empty prompt starts a new story. Text beyond the model's context goes on from the
        newer half of it; ``notify`` is told.

        Args:
            params: parameters of the model.
            prompts: at least one.
            config: how tokens are chosen.
            notify: is handed one sentence for each thing worth knowing, once.
        """
        notify = lru_cache(notify)
        contexts = [self._context_of(prompt) for prompt in prompts]
        produced: list[list[int]] = [[] for _ in prompts]
        key = jax.random.key(config.seed)
        left = config.max_tokens
        while left > 0:
            contexts = self._slide(contexts, notify)
            num_new = min(left, self._window - max(map(len, contexts)) + 1)
            key, segment_key = jax.random.split(key)
            new = self._segment(params, contexts, num_new, config, segment_key)
            for row, tokens in enumerate(new):
                produced[row] += tokens
                # A text that has ended takes no room in the next segment.
                ended = self._tokenizer.end_of_text in produced[row]
                contexts[row] = tokens[-1:] if ended else contexts[row] + tokens
            left -= num_new
            if all(self._tokenizer.end_of_text in text for text in produced):
                break
        return [self._decode(tokens) for tokens in produced]

    def _context_of(self, prompt: str) -> list[int]:
        tokens = self._tokenizer.encode(prompt).tolist()
        starts_story = self._rows_follow_end_of_text or not tokens
        return [self._tokenizer.end_of_text, *tokens] if starts_story else tokens

    def _decode(self, tokens: list[int]) -> str:
        end = self._tokenizer.end_of_text
        return self._tokenizer.decode(tokens[: tokens.index(end)] if end in tokens else tokens)

    def _slide(self, contexts: list[list[int]], notify: Callable[[str], None]) -> list[list[int]]:
        """Cut contexts that leave no room for another token."""
        kept = self._window // 2
        if all(len(context) <= self._window for context in contexts):
            return contexts
        notify(
            f"a text is longer than the model's context of {self._window} tokens: it goes on "
            f"from its last {kept}"
        )
        return [c if len(c) <= self._window else c[-kept:] for c in contexts]

    def _segment(
        self,
        params: Params,
        contexts: list[list[int]],
        num_new: int,
        config: SamplingConfig,
        key: jax.Array,
    ) -> list[list[int]]:
        """``num_new`` tokens for each context.

        Shapes are rounded up so that few programs are compiled; tokens beyond ``num_new``, which
        may lie beyond the model's context, are thrown away.
        """
        width = min(_round_up_to_power(max(map(len, contexts))), self._window)
        tokens = np.zeros((len(contexts), width), np.int32)
        for row, context in enumerate(contexts):
            tokens[row, : len(context)] = context
        lengths = np.array([len(context) for context in contexts], np.int32)
        choice = replace(
            config,
            max_tokens=-(-num_new // _NEW_TOKENS_MULTIPLE) * _NEW_TOKENS_MULTIPLE,
            seed=0,
        )
        new = self._run(params, tokens, lengths, key, config=choice)
        return multihost_utils.process_allgather(new, tiled=True)[:, :num_new].tolist()


def _round_up_to_power(size: int) -> int:
    return max(_MIN_WIDTH, 1 << (size - 1).bit_length())


def _generate(
    graph: nnx.GraphDef[GPT],
    params: Params,
    tokens: Int[Array, "batch prompt"],
    lengths: Int[Array, " batch"],
    key: Array,
    *,
    config: SamplingConfig,
) -> Int[Array, "batch new"]:
    """Prefill, then one decode step for each further token; rows go on after end-of-text."""
    model = nnx.merge(graph, params)
    logits, cache = prefill(model, tokens, lengths, model.spec.model.seq_length)
    first = choose(logits, jax.random.fold_in(key, 0), config)

    def step(
        carry: tuple[Array, Array, Cache], index: Array
    ) -> tuple[tuple[Array, Array, Cache], Array]:
        token, positions, cache = carry
        logits, cache = decode_step(model, token, positions, cache)
        token = choose(logits, jax.random.fold_in(key, index), config)
        return (token, positions + 1, cache), token

    _, rest = jax.lax.scan(step, (first, lengths, cache), jnp.arange(1, config.max_tokens))
    return jnp.concatenate([first[:, None], rest.T], axis=1)


def choose(
    logits: Float[Array, "batch vocab"], key: Array, config: SamplingConfig
) -> Int[Array, " batch"]:
    """The next token of each row: top-k first, then top-p (Holtzman et al. 2020), then a draw."""
    if config.temperature == 0:
        return logits.argmax(-1)
    logits = logits / config.temperature
    if config.top_k:
        kth = jax.lax.top_k(logits, min(config.top_k, logits.shape[-1]))[0][:, -1:]
        logits = jnp.where(logits < kth, -jnp.inf, logits)
    if config.top_p < 1:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        probabilities = jax.nn.softmax(ordered, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        least = jnp.where(before < config.top_p, ordered, jnp.inf).min(-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return jax.random.categorical(key, logits, axis=-1)
