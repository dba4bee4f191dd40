"""How the next token is chosen: each row of a batch by settings of its own."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from minigpt.errors import ConfigError

NUM_CANDIDATES = 5
"""Most likely tokens that are told beside each chosen one."""
_FEW = 128
_BLOCK = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How a prompt is continued."""

    max_tokens: int = 200
    """New tokens for each prompt; a story may end sooner."""
    temperature: float = 0.8
    """Divides the logits; 0: always the most likely token."""
    top_k: int = 0
    """Choose among this many most likely tokens; 0: all."""
    top_p: float = 1.0
    """Choose among the most likely tokens that together have this probability."""
    repetition_penalty: float = 1.0
    """Divides positive logits (and multiplies negative ones) of tokens that the text has already;
    1: none (Keskar et al. 2019, CTRL, section 4.1)."""
    seed: int = 0
    """The same seed, prompts and settings give the same text."""
    stop: tuple[str, ...] = field(default=())
    """Texts that end the continuation, which goes up to the first of them."""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        for name, valid, rule in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < float("inf"), "at least 0 (0 is greedy)"),
            ("top_k", 0 <= self.top_k < 2**31, "at least 0 (0 is all tokens)"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1 (1 is all tokens)"),
            (
                "repetition_penalty",
                0 < self.repetition_penalty < float("inf"),
                "above 0 (1 is none)",
            ),
            ("seed", 0 <= self.seed < 2**32, "at least 0 and below 2**32"),
            ("stop", all(self.stop), "texts that are not empty"),
        ):
            if not valid:
                raise ConfigError(f"{name} must be {rule}, got {getattr(self, name)}")


class Settings(NamedTuple):
    """What decides the next token of each row, as arrays."""

    temperature: Float[Any, " rows"]
    top_k: Int[Any, " rows"]
    top_p: Float[Any, " rows"]
    repetition_penalty: Float[Any, " rows"]


class Drawn(NamedTuple):
    """The next token of each row.

    Log probabilities are the model's own, before penalty, temperature and cuts.
    """

    tokens: Int[Array, " rows"]
    logprobs: Float[Array, " rows"]
    candidates: Int[Array, "rows candidates"]
    """The most likely tokens, most likely first."""
    candidate_logprobs: Float[Array, "rows candidates"]


def draw(
    logits: Float[Array, "rows vocab"],
    seen: Bool[Array, "rows vocab"],
    keys: Key[Array, " rows"],
    settings: Settings,
) -> Drawn:
    """Choose the next token of each row: penalty, temperature, top-k, top-p, then a draw.

    Args:
        logits: of the model.
        seen: tokens that each row's text has.
        keys: one for each row.
        settings: of each row.
    """
    adjusted = _penalised(logits, seen, settings.repetition_penalty)
    greedy = settings.temperature == 0
    scaled = adjusted / jnp.where(greedy, 1.0, settings.temperature)[:, None]
    cuts = (settings.top_k > 0) | (settings.top_p < 1)
    scaled = jax.lax.cond((cuts & ~greedy).any(), _cut, lambda x, _: x, scaled, settings)
    tokens = jnp.where(greedy, adjusted.argmax(-1), _draw(scaled, keys))
    log_total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    best, candidates = jax.lax.top_k(logits, min(NUM_CANDIDATES, logits.shape[-1]))
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1) - log_total
    return Drawn(tokens, chosen[:, 0], candidates, best - log_total)


def _penalised(logits: Array, seen: Array, penalty: Array) -> Array:
    def apply(logits: Array) -> Array:
        less = jnp.where(logits > 0, logits / penalty[:, None], logits * penalty[:, None])
        return jnp.where(seen, less, logits)

    return jax.lax.cond((penalty != 1).any(), apply, lambda x: x, logits)


def _cut(logits: Array, settings: Settings) -> Array:
    """Keep what top-k and then top-p keep (Holtzman et al. 2020); equal logits stay together.

    Nearly always the few most likely tokens decide, which are found many times faster than all
    are sorted.
    """
    log_total = jax.nn.logsumexp(logits, axis=-1)
    few = jax.lax.top_k(logits, min(_FEW, logits.shape[-1]))[0]
    kth, least = _least_kept(few, settings, log_total)
    # Tokens that are not among the few are at most the last of them.
    limit = jnp.where(settings.top_k > 0, kth, least)
    decided = (limit > few[:, -1]) | ((settings.top_k == 0) & (settings.top_p == 1))

    def of_all() -> Array:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        return _least_kept(ordered, settings, log_total)[1]

    least = jax.lax.cond(decided.all(), lambda: least, of_all)
    return jnp.where(logits < least[:, None], -jnp.inf, logits)


def _least_kept(ordered: Array, settings: Settings, log_total: Array) -> tuple[Array, Array]:
    """The least logit that top-k keeps, and that both keep, where ``ordered`` has all of these."""
    by_k = settings.top_k > 0
    last = jnp.clip(settings.top_k - 1, 0, ordered.shape[-1] - 1)[:, None]
    kth = jnp.where(by_k, jnp.take_along_axis(ordered, last, axis=-1)[:, 0], -jnp.inf)
    kept = jnp.where(ordered < kth[:, None], -jnp.inf, ordered)
    total = jnp.where(by_k, jax.nn.logsumexp(kept, axis=-1), log_total)
    probabilities = jnp.exp(kept - total[:, None])
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    nucleus = jnp.where(before < settings.top_p[:, None], kept, jnp.inf).min(-1)
    return kth, jnp.where(settings.top_p < 1, jnp.maximum(kth, nucleus), kth)


def _draw(logits: Array, keys: Array) -> Array:
    """A token of each row by its probability, from two uniform numbers.

    The inverse of the cumulative distribution, first over blocks of tokens and then within one:
    a Gumbel draw needs a random number for every token of the vocabulary.
    """
    rows, vocab = logits.shape
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    weights = jnp.pad(weights, ((0, 0), (0, -vocab % _BLOCK))).reshape(rows, -1, _BLOCK)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
    block = _crossing(weights.sum(-1), uniform[:, 0])
    chosen = jnp.take_along_axis(weights, block[:, None, None], axis=1)[:, 0]
    return block * _BLOCK + _crossing(chosen, uniform[:, 1])


def _crossing(weights: Array, share: Array) -> Array:
    """Where the cumulated weights first exceed a share of their sum: never at a weight of 0."""
    ends = jnp.cumsum(weights, axis=-1)
    target = jnp.minimum(share * ends[:, -1], jnp.nextafter(ends[:, -1], 0.0))
    return (ends > target[:, None]).argmax(-1)
