import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minigpt.errors import ConfigError
from minigpt.generate.sampling import SamplingConfig, Settings, draw


def drawn_tokens(rows, config, seen=None, seed=1):
    """A token for each row, as the engine draws them."""
    num = len(rows)
    settings_of_rows = Settings(
        jnp.full(num, config.temperature),
        jnp.full(num, config.top_k),
        jnp.full(num, config.top_p),
        jnp.full(num, config.repetition_penalty),
    )
    seen = np.zeros(rows.shape, bool) if seen is None else seen
    keys = jax.random.split(jax.random.key(seed), num)
    return np.asarray(jax.jit(draw)(rows, seen, keys, settings_of_rows).tokens)


LOGITS = np.log([0.3, 0.05, 0.2, 0.02, 0.25, 0.1, 0.08]) + 4


def exact(temperature, top_k, top_p, logits=LOGITS):
    """Probabilities by the definitions, token by token."""
    tokens = sorted(range(len(logits)), key=lambda token: -logits[token])
    kept = tokens[:top_k] if top_k else tokens
    weights = {token: np.exp(logits[token] / temperature) for token in kept}
    total = sum(weights.values())
    nucleus, mass = [], 0.0
    for token in kept:
        if mass >= top_p:
            break
        nucleus.append(token)
        mass += weights[token] / total
    chosen = sum(weights[token] for token in nucleus)
    return np.array([weights[t] / chosen if t in nucleus else 0.0 for t in range(len(logits))])


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, 0, 1.0),
        (0.5, 0, 1.0),
        (2.0, 0, 1.0),
        (1.0, 3, 1.0),
        (1.0, 99, 1.0),
        (1.0, 0, 0.29),
        (1.0, 0, 0.31),
        (1.0, 0, 0.6),
        (1.0, 0, 0.97),
        (2.0, 0, 0.6),
        (0.7, 4, 0.8),
        (1.0, 3, 0.7),
    ],
)
def test_draws_have_the_renormalised_probabilities(temperature, top_k, top_p):
    config = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p)
    expected = exact(temperature, top_k, top_p)
    num = 20_000
    rows = jnp.tile(jnp.array(LOGITS, jnp.float32), (num, 1))
    drawn = drawn_tokens(rows, config)
    counts = np.bincount(drawn, minlength=len(LOGITS))
    assert (counts[expected == 0] == 0).all()
    deviation = np.sqrt(num * expected * (1 - expected))
    assert (np.abs(counts - num * expected) <= 4 * deviation + 1e-3).all()


@pytest.mark.parametrize(
    ("fields", "possible"),
    [
        ({"temperature": 0}, {1}),
        ({"top_k": 1}, {1, 3}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 3}, {1, 3, 4}),
        ({"top_p": 0.1}, {1, 3}),
    ],
)
def test_equally_likely_tokens_are_kept_together(fields, possible):
    config = SamplingConfig(**{"temperature": 1} | fields)
    rows = jnp.tile(jnp.array([0.0, 2, 0.5, 2, 1]), (500, 1))
    drawn = drawn_tokens(rows, config)
    assert set(drawn.tolist()) == possible


def test_rows_are_cut_one_by_one():
    pair = jnp.log(jnp.array([[0.97, 0.01, 0.01, 0.01], [0.25, 0.25, 0.25, 0.25]]))
    rows = jnp.tile(pair, (500, 1))
    drawn = drawn_tokens(rows, SamplingConfig(temperature=1, top_p=0.9)).reshape(500, 2)
    assert set(drawn[:, 0].tolist()) == {0}
    assert set(drawn[:, 1].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("fields", "spread"),
    [
        ({}, 1.0),
        ({"top_k": 200}, 1.0),  # more than are looked at first
        ({"top_p": 0.9}, 0.1),  # nearly flat: the nucleus is most of the vocabulary
        ({"top_p": 0.5}, 3.0),
        ({"top_k": 200, "top_p": 0.5}, 0.1),
        ({"top_k": 20, "top_p": 0.5}, 1.0),
    ],
)
def test_a_large_vocabulary_is_cut_as_a_small_one(fields, spread):
    """Against the definition, over a vocabulary of several blocks."""
    logits = np.random.default_rng(3).normal(0, spread, 1000).astype(np.float32)
    config = SamplingConfig(**{"temperature": 1} | fields)
    expected = exact(1.0, config.top_k, config.top_p, logits)
    num = 5_000
    drawn = drawn_tokens(jnp.tile(logits, (num, 1)), config)
    counts = np.bincount(drawn, minlength=len(logits))
    assert (counts[expected == 0] == 0).all()
    groups = np.arange(1000) // 100  # every 100 tokens, with enough draws each
    share = np.bincount(groups, expected)
    found = np.bincount(groups, counts)
    deviation = np.sqrt(num * share * (1 - share))
    assert (np.abs(found - num * share) <= 4.5 * deviation + 1e-3).all()


def test_a_penalty_makes_seen_tokens_less_likely():
    """Positive logits are divided and negative ones multiplied, before the temperature."""
    logits = np.array([2.0, 1.5, -0.5, -1.0], np.float32)
    seen = np.array([True, False, True, False])
    config = SamplingConfig(temperature=0.5, repetition_penalty=1.6)
    weights = np.exp(np.array([2 / 1.6, 1.5, -0.5 * 1.6, -1.0]) / 0.5)
    expected = weights / weights.sum()
    num = 20_000
    rows, known = np.tile(logits, (num, 1)), np.tile(seen, (num, 1))
    counts = np.bincount(drawn_tokens(rows, config, known), minlength=4)
    deviation = np.sqrt(num * expected * (1 - expected))
    assert (np.abs(counts - num * expected) <= 4 * deviation).all()
    greedy = SamplingConfig(temperature=0, repetition_penalty=1.6)
    assert drawn_tokens(rows[:2], greedy, known[:2]).tolist() == [1, 1]


def test_rows_have_settings_of_their_own():
    logits = jnp.tile(jnp.array([1.0, 0.9, 0.8, 0.7]), (4000, 1))
    kind = np.arange(4000) % 4
    settings = Settings(
        temperature=np.where(kind == 0, 0.0, 1.0).astype(np.float32),
        top_k=np.where(kind == 1, 2, 0).astype(np.int32),
        top_p=np.where(kind == 2, 0.6, 1.0).astype(np.float32),
        repetition_penalty=np.ones(4000, np.float32),
    )
    keys = jax.random.split(jax.random.key(0), 4000)
    seen = jnp.zeros((4000, 4), bool)
    tokens = np.asarray(jax.jit(draw)(logits, seen, keys, settings).tokens)
    kept = [set(tokens[kind == number].tolist()) for number in range(4)]
    assert kept == [{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"temperature": -0.5}, r"temperature must be at least 0 \(0 is greedy\), got -0.5"),
        ({"temperature": float("nan")}, "temperature must be at least 0"),
        ({"top_k": -1}, r"top_k must be at least 0 \(0 is all tokens\), got -1"),
        ({"top_p": 0.0}, r"top_p must be above 0 and at most 1 \(1 is all tokens\), got 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1 .*, got 1.5"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty must be above 0 \(1 is none\), got 0.0"),
        ({"stop": ("a", "")}, r"stop must be texts that are not empty, got \('a', ''\)"),
        ({"seed": -1}, r"seed must be at least 0 and below 2\*\*32, got -1"),
        ({"seed": 2**32}, r"seed must be at least 0 and below 2\*\*32, got 4294967296"),
    ],
)
def test_settings_are_checked(fields, message):
    with pytest.raises(ConfigError, match=message):
        SamplingConfig(**fields)
