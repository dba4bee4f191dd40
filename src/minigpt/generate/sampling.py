"""How the next token is chosen: each row of a batch by settings of its own."""

from dataclasses import dataclass
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
    stop: tuple[str, ...] = ()
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
    likeliest = jax.lax.top_k(adjusted, 1)[1][:, 0]
    tokens = jax.lax.cond(greedy.all(), lambda: likeliest, lambda: _draw(scaled, keys))
    tokens = jnp.where(greedy, likeliest, tokens)
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

    Mostly the few most likely tokens decide; where they do not, in a flat distribution, the least
    logits to keep are found by bisection. Sorting all takes several times longer than either.
    """
    log_total = jax.nn.logsumexp(logits, axis=-1)
    few = jax.lax.top_k(logits, min(_FEW, logits.shape[-1]))[0]
    kth, least = _least_of_few(few, settings, log_total)
    # Tokens that are not among the few are at most the last of them.
    limit = jnp.where(settings.top_k > 0, kth, least)
    decided = (limit > few[:, -1]) | ((settings.top_k == 0) & (settings.top_p == 1))
    least = jax.lax.cond(
        decided.all(), lambda: least, lambda: _least_of_all(logits, settings, log_total)
    )
    return jnp.where(logits < least[:, None], -jnp.inf, logits)


def _least_of_few(ordered: Array, settings: Settings, log_total: Array) -> tuple[Array, Array]:
    """The least logit that top-k keeps, and that both keep, if ``ordered`` has all of those."""
    by_k = settings.top_k > 0
    last = jnp.clip(settings.top_k - 1, 0, ordered.shape[-1] - 1)[:, None]
    kth = jnp.where(by_k, jnp.take_along_axis(ordered, last, axis=-1)[:, 0], -jnp.inf)
    kept = jnp.where(ordered < kth[:, None], -jnp.inf, ordered)
    total = jnp.where(by_k, jax.nn.logsumexp(kept, axis=-1), log_total)
    probabilities = jnp.exp(kept - total[:, None])
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    nucleus = jnp.where(before < settings.top_p[:, None], kept, jnp.inf).min(-1)
    return kth, jnp.where(settings.top_p < 1, jnp.maximum(kth, nucleus), kth)


def _least_of_all(logits: Array, settings: Settings, log_total: Array) -> Array:
    """The least logit that both keep."""
    kth = _reaching(logits, jnp.ones_like(logits), settings.top_k)
    kth = jnp.where(settings.top_k > 0, kth, -jnp.inf)
    kept = jnp.where(logits < kth[:, None], -jnp.inf, logits)
    total = jnp.where(settings.top_k > 0, jax.nn.logsumexp(kept, axis=-1), log_total)
    nucleus = _reaching(kept, jnp.exp(kept - total[:, None]), settings.top_p)
    return jnp.where(settings.top_p < 1, jnp.maximum(kth, nucleus), kth)


def _reaching(logits: Array, weights: Array, target: Array) -> Array:
    """The largest logit such that it and all larger ones have together at least a weight.

    By bisection over the bits of a float32, which order as integers do. The least of all numbers
    where even all logits together do not have the weight.
    """
    bits = jax.lax.bitcast_convert_type(logits, jnp.int32)
    order = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)

    def halve(_: int | Array, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = interval  # reaching, and not
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        reaches = jnp.where(order >= middle[:, None], weights, 0.0).sum(-1) >= target
        return jnp.where(reaches, middle, low), jnp.where(reaches, high, middle)

    start = (jnp.full_like(order[:, 0], -(2**31)), jnp.full_like(order[:, 0], 2**31 - 1))
    low, _ = jax.lax.fori_loop(0, 32, halve, start)
    # The interval has closed on a logit, or on nothing that is one.
    return jnp.where(order >= low[:, None], logits, jnp.inf).min(-1)


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
