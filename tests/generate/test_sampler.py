import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from minigpt.config import ModelConfig
from minigpt.errors import ConfigError
from minigpt.generate.sampler import Generator, SamplingConfig, choose
from minigpt.model.gpt import GPTSpec
from minigpt.train.state import init_params, model_graph

WINDOW, END = 32, 256
SPEC = GPTSpec(
    model=ModelConfig(num_layers=2, num_heads=2, embed_dim=16, seq_length=WINDOW), vocab_size=257
)
GRAPH = model_graph(SPEC)
PROMPTS = ("", "a", "Once upon", "A long prompt of 29 characters")
GREEDY = SamplingConfig(max_tokens=20, temperature=0)


class Latin1:
    """Each token but the last is a character, so that texts show every token."""

    name = "latin-1"
    vocab_size = 257
    end_of_text = END

    def encode(self, text):
        return np.frombuffer(text.encode("latin-1"), np.uint8).astype(np.uint16)

    def decode(self, tokens):
        return bytes(tokens).decode("latin-1")


GENERATORS = {layout: Generator(SPEC, Latin1(), layout) for layout in ("packed", "padded")}


@cache
def noise():
    """Parameters that are all noise: other prompts have other continuations."""
    rng = np.random.default_rng(5)

    def draw(path, leaf):
        # Large biases would make the same token win everywhere.
        std = 0.05 if "bias" in path[-1].key else 0.5
        return rng.normal(0, std, leaf.shape).astype(np.float32)

    shapes = jax.eval_shape(lambda: init_params(SPEC, 0))
    params = jax.tree_util.tree_map_with_path(draw, shapes)
    return jax.device_put(with_end(params, 0))


def with_end(params, row):
    """Set the embedding of end-of-text, which its logit is the product with."""
    params["token_embedding"][END] = row
    return params


def ending_at(character):
    """Parameters that choose end-of-text whenever they chose this character before."""
    params = jax.tree.map(np.array, noise())
    return jax.device_put(with_end(params, 1.01 * params["token_embedding"][ord(character)]))


def settings(**changes):
    return dataclasses.replace(GREEDY, **changes)


def generate(prompts, config=GREEDY, *, layout="padded", params=None):
    """(texts, what notify was told)"""
    told = []
    params = noise() if params is None else params
    return GENERATORS[layout].generate(params, prompts, config, told.append), told


def one(prompt, config=GREEDY, **options):
    return generate([prompt], config, **options)[0][0]


@jax.jit
def most_likely(params, tokens, length):
    model = nnx.merge(GRAPH, params)
    return model.logits(model.hidden(tokens[None]))[0, length - 1].argmax()


def greedy_without_cache(context, num_tokens):
    """The whole text through the whole model for each token, as the documentation describes."""
    context, new = list(context), []
    for _ in range(num_tokens):
        if len(context) > WINDOW:
            context = context[-WINDOW // 2 :]
        tokens = np.zeros(WINDOW, np.int32)
        tokens[: len(context)] = context
        token = int(most_likely(noise(), tokens, len(context)))
        context.append(token)
        new.append(token)
    return "".join(map(chr, new))


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_equals_greedy_without_a_cache(prompt, layout):
    context = [END] * (layout == "packed" or not prompt) + [ord(c) for c in prompt]
    expected = greedy_without_cache(context, 80)
    assert len(set(expected)) > 8
    assert one(prompt, settings(max_tokens=80), layout=layout) == expected


def test_only_packed_rows_follow_end_of_text():
    text = "Once upon"
    codes = [ord(c) for c in text]
    after_end, alone = greedy_without_cache([END, *codes], 20), greedy_without_cache(codes, 20)
    assert after_end != alone
    assert one(text, layout="packed") == after_end
    assert one(text, layout="padded") == alone
    assert one("", layout="packed") == one("", layout="padded")


def test_a_batch_equals_each_prompt_alone():
    config = settings(max_tokens=50)
    texts, _ = generate(PROMPTS, config)
    assert texts == [one(prompt, config) for prompt in PROMPTS]
    assert len(set(texts)) == len(PROMPTS)


@pytest.mark.parametrize("num_tokens", [1, 2, 31, 32, 33, 50])
def test_max_tokens_is_exact(num_tokens):
    texts, _ = generate(["ab", "c"], settings(max_tokens=num_tokens))
    assert texts == [
        text[:num_tokens] for text in generate(["ab", "c"], settings(max_tokens=50))[0]
    ]
    assert [len(text) for text in texts] == [num_tokens, num_tokens]


# Draws


def test_a_seed_decides_the_text():
    draws = [one("abc", settings(temperature=1, seed=seed)) for seed in (3, 3, 4, 2**32 - 1)]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 3


def test_the_same_prompt_twice_has_two_texts():
    texts, _ = generate(["abc", "abc"], settings(temperature=1))
    assert texts[0] != texts[1]


def test_temperature_0_ignores_the_seed():
    assert one("abc", settings(seed=1)) == one("abc", settings(seed=2))


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_settings_that_leave_the_most_likely_token_are_greedy(fields):
    config = settings(**{"temperature": 1, "seed": 7} | fields)
    assert generate(PROMPTS[:3], config) == generate(PROMPTS[:3])


def test_sampled_text_does_not_depend_on_how_much_is_asked_for():
    config = settings(temperature=1, max_tokens=28)
    assert one("abcde", dataclasses.replace(config, max_tokens=10)) == one("abcde", config)[:10]


LOGITS = np.log([0.3, 0.05, 0.2, 0.02, 0.25, 0.1, 0.08]) + 4


def exact(temperature, top_k, top_p):
    """Probabilities by the definitions, token by token."""
    tokens = sorted(range(len(LOGITS)), key=lambda token: -LOGITS[token])
    kept = tokens[:top_k] if top_k else tokens
    weights = {token: np.exp(LOGITS[token] / temperature) for token in kept}
    total = sum(weights.values())
    nucleus, mass = [], 0.0
    for token in kept:
        if mass >= top_p:
            break
        nucleus.append(token)
        mass += weights[token] / total
    chosen = sum(weights[token] for token in nucleus)
    return np.array([weights[t] / chosen if t in nucleus else 0.0 for t in range(len(LOGITS))])


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
    drawn = jax.jit(lambda rows, key: choose(rows, key, config))(rows, jax.random.key(1))
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
    drawn = jax.jit(lambda rows, key: choose(rows, key, config))(rows, jax.random.key(1))
    assert set(drawn.tolist()) == possible


def test_rows_are_cut_one_by_one():
    rows = jnp.log(jnp.array([[0.97, 0.01, 0.01, 0.01], [0.25, 0.25, 0.25, 0.25]]))
    config = SamplingConfig(temperature=1, top_p=0.9)
    run = jax.jit(jax.vmap(lambda key: choose(rows, key, config)))
    drawn = np.asarray(run(jax.random.split(jax.random.key(0), 500)))
    assert set(drawn[:, 0].tolist()) == {0}
    assert set(drawn[:, 1].tolist()) == {0, 1, 2, 3}


# The end of a text


def test_text_stops_before_end_of_text():
    whole = one("ab", settings(max_tokens=28))
    character = whole[9]
    expected = whole[: whole.index(character)]
    assert 0 < len(expected) < 28
    params = ending_at(character)
    assert one("ab", settings(max_tokens=28), params=params) == expected
    assert one("ab", settings(max_tokens=len(expected)), params=params) == expected


def test_a_text_that_ends_at_once_is_empty():
    assert one("ab", params=ending_at(one("ab")[0])) == ""


def test_other_texts_go_on_after_one_has_ended():
    """The long prompt ends soon: what the short one says and is told is as if it were alone."""
    long, short = "x" * (WINDOW - 3), "ab"
    config = settings(max_tokens=25)
    character = one(long)[1]
    whole = one(short, config)
    assert character not in whole
    params = ending_at(character)
    (first, second), told = generate([long, short], config, params=params)
    assert len(first) <= 1
    assert second == one(short, config, params=params)
    assert len(second) == 25
    assert told == []


# Longer than the context


def test_text_longer_than_the_context_slides():
    room = WINDOW - 5 + 1
    config = settings(temperature=0.8, max_tokens=3 * WINDOW)
    (text,), told = generate(["abcde"], config)
    assert len(text) == 3 * WINDOW
    assert told == [
        "a text is longer than the model's context of 32 tokens: it goes on from its last 16"
    ]
    short, nothing = generate(["abcde"], dataclasses.replace(config, max_tokens=room))
    assert short == [text[:room]]
    assert nothing == []
    _, told = generate(["abcde"], dataclasses.replace(config, max_tokens=room + 1))
    assert len(told) == 1


def test_a_prompt_longer_than_the_context_is_cut():
    prompt = "".join(chr(60 + i) for i in range(50))
    (text,), told = generate([prompt])
    assert text == one(prompt[-WINDOW // 2 :])
    assert len(told) == 1
    assert "context of 32 tokens" in told[0]


def test_a_prompt_that_fills_the_context_is_not_cut():
    prompt = "".join(chr(60 + i) for i in range(WINDOW))
    texts, told = generate([prompt], settings(max_tokens=1))
    assert texts == [greedy_without_cache(map(ord, prompt), 1)]
    assert told == []


# Settings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"temperature": -0.5}, r"temperature must be at least 0 \(0 is greedy\), got -0.5"),
        ({"temperature": float("nan")}, "temperature must be at least 0"),
        ({"top_k": -1}, r"top_k must be at least 0 \(0 is all tokens\), got -1"),
        ({"top_p": 0.0}, r"top_p must be above 0 and at most 1 \(1 is all tokens\), got 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1 .*, got 1.5"),
        ({"seed": -1}, r"seed must be at least 0 and below 2\*\*32, got -1"),
        ({"seed": 2**32}, r"seed must be at least 0 and below 2\*\*32, got 4294967296"),
    ],
)
def test_settings_are_checked(fields, message):
    with pytest.raises(ConfigError, match=message):
        SamplingConfig(**fields)
