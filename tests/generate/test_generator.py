import dataclasses
from functools import cache

import jax
import numpy as np
import pytest
from flax import nnx

from minigpt.config import ModelConfig
from minigpt.generate.generator import Generator
from minigpt.generate.sampling import SamplingConfig
from minigpt.model.gpt import GPTSpec
from minigpt.parallel.mesh import make_mesh
from minigpt.train.state import StateLayout, init_params, model_graph

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
        return "".join(map(chr, tokens))

    def token_bytes(self, token):
        return chr(token).encode()


GENERATORS = {layout: Generator(SPEC, Latin1(), layout) for layout in ("packed", "padded")}


@cache
def noise():
    """Parameters that are all noise: other prompts have other continuations."""
    rng = np.random.default_rng(5)

    def noise_of(path, leaf):
        # Large biases would make the same token win everywhere.
        std = 0.05 if "bias" in path[-1].key else 0.5
        return rng.normal(0, std, leaf.shape).astype(np.float32)

    shapes = jax.eval_shape(lambda: init_params(SPEC, 0))
    params = jax.tree_util.tree_map_with_path(noise_of, shapes)
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
def next_logits(params, tokens, length):
    model = nnx.merge(GRAPH, params)
    return model.logits(model.hidden(tokens[None]))[0, length - 1]


def logits_after(context):
    """Of the whole context through the whole model."""
    tokens = np.zeros(WINDOW, np.int32)
    tokens[: len(context)] = context
    return next_logits(noise(), tokens, len(context))


def greedy_without_cache(context, num_tokens):
    """The whole text through the whole model for each token, as the documentation describes."""
    context, new = list(context), []
    for _ in range(num_tokens):
        if len(context) > WINDOW:
            context = context[-WINDOW // 2 :]
        token = int(logits_after(context).argmax())
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


def test_every_token_is_a_draw_of_its_own():
    """Of a model to which all tokens are equally likely."""
    nothing_learnt = jax.tree.map(np.zeros_like, noise())
    text = one("abc", settings(temperature=1, max_tokens=28), params=nothing_learnt)
    assert len(set(text)) > 20


def test_temperature_0_ignores_the_seed():
    assert one("abc", settings(seed=1)) == one("abc", settings(seed=2))


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_settings_that_leave_the_most_likely_token_are_greedy(fields):
    config = settings(**{"temperature": 1, "seed": 7} | fields)
    assert generate(PROMPTS[:3], config) == generate(PROMPTS[:3])


def test_sampled_text_does_not_depend_on_how_much_is_asked_for():
    config = settings(temperature=1, max_tokens=28)
    assert one("abcde", dataclasses.replace(config, max_tokens=10)) == one("abcde", config)[:10]


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
    config = settings(temperature=0.8, max_tokens=3 * WINDOW, seed=1)
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


# As it comes


def test_a_stream_is_the_whole_text_piece_by_piece():
    config = settings(max_tokens=25, temperature=1)
    pieces = list(GENERATORS["padded"].stream(noise(), PROMPTS, config))
    texts, _ = generate(PROMPTS, config)
    for number, text in enumerate(texts):
        own = [piece for of, piece in pieces if of == number]
        assert "".join(piece.text for piece in own) == text
        assert [piece.reason for piece in own] == [None] * (len(own) - 1) + ["length"]
        assert all(len(piece.text) == 1 for piece in own)
    # All go on together.
    assert [number for number, _ in pieces[:8]] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_the_probabilities_are_the_models_own():
    """Whatever the temperature, the cuts and the penalty."""
    config = settings(max_tokens=12, temperature=1.7, top_k=50, repetition_penalty=1.3, seed=2)
    tokens = [ord(character) for character in "Once"]
    for _, piece in GENERATORS["padded"].stream(noise(), ["Once"], config):
        expected = np.asarray(jax.nn.log_softmax(logits_after(tokens)))
        choice = piece.choice
        assert choice.logprob == pytest.approx(expected[choice.token], abs=1e-4)
        best = np.argsort(-expected)[:5]
        assert [token for token, _ in choice.candidates] == best.tolist()
        found = [logprob for _, logprob in choice.candidates]
        np.testing.assert_allclose(found, expected[best], atol=1e-4)
        tokens.append(choice.token)


def test_texts_that_find_no_row_wait_for_one(monkeypatch):
    config = settings(max_tokens=6, temperature=1)
    prompts = [*PROMPTS, "x", "yz"]
    expected, _ = generate(prompts, config)
    monkeypatch.setattr("minigpt.generate.generator.MAX_ROWS", 2)
    assert generate(prompts, config)[0] == expected


def test_texts_that_cannot_all_be_read_at_once_take_turns(monkeypatch):
    """When they join, and when they outgrow the window together."""
    config = settings(max_tokens=60, temperature=1)
    prompts = ["x" * 20, "y" * 20, "z" * 20, "", "w" * 20]
    expected, _ = generate(prompts, config)
    monkeypatch.setattr("minigpt.generate.engine._PREFILL_TOKENS", 32)
    assert (
        generate(prompts, config)[0] == expected == [one_of(prompts, n, config) for n in range(5)]
    )


def one_of(prompts, number, config):
    """The text of a prompt, alone."""
    generator = GENERATORS["padded"]
    engine = generator.engine(noise(), 1)
    engine.add(generator.continuation(prompts[number], config, number))
    pieces = []
    while engine.busy:
        pieces += [piece.text for _, piece in engine.step()]
    return "".join(pieces)


def test_a_removed_text_frees_its_row():
    generator = GENERATORS["padded"]
    engine = generator.engine(noise(), 2)
    first, second, third = (
        generator.continuation(prompt, settings(max_tokens=9)) for prompt in ("a", "b", "c")
    )
    for text in (first, second, third):
        engine.add(text)
    assert [text for text, _ in engine.step()] == [first, second]
    engine.remove(first)
    assert [text for text, _ in engine.step()] == [third]
    assert [text for text, _ in engine.step()] == [third, second]
    engine.remove(second)
    pieces = [piece for _ in range(7) for _, piece in engine.step()]
    assert pieces[-1].reason == "length"
    assert not engine.busy
    assert third.num_drawn == 9


def test_nothing_is_compiled_after_compile_all():
    """Whatever prompts, lengths, settings and numbers of texts come; slides included."""
    generator = Generator(SPEC, Latin1(), "padded")
    engine = generator.engine(noise(), 5)
    engine.compile_all()
    programs = engine._programs
    sizes = [program._cache_size() for program in (programs.prefill, programs.decode)]
    assert sizes == [2 * 2, 2 * 1]  # 2 or 5 rows; 16 or 32 tokens; 32 positions
    for number in range(12):
        config = settings(
            max_tokens=1 + 5 * number, temperature=number % 3, top_k=number % 4, top_p=0.9
        )
        engine.add(generator.continuation("x" * (3 * number), config, number))
        engine.step()
    while engine.busy:
        engine.step()
    assert [program._cache_size() for program in (programs.prefill, programs.decode)] == sizes


# A text that repeats itself


def test_a_penalty_keeps_a_text_from_repeating_itself():
    """One that is prohibitive: no token twice, those of the prompt neither."""
    text = one("abcdefgh", settings(max_tokens=WINDOW * 2, repetition_penalty=1e6))
    assert len(set(text)) == len(text) == WINDOW * 2
    assert not set(text) & set("abcdefgh")
    plain = one("abcdefgh", settings(max_tokens=WINDOW * 2))
    assert len(set(plain)) < len(plain)


# On a mesh


@pytest.mark.parametrize("shape", [(1, 1, 2), (1, 2, 1), (2, 2, 2)])
def test_a_mesh_says_what_one_device_says(shape):
    mesh = make_mesh(shape)
    layout = StateLayout(mesh, interleave=1, zero=False)
    shapes = jax.eval_shape(layout.to_chunks, noise())
    where = jax.tree.map(lambda leaf: leaf.sharding, layout.saved_target(shapes))
    params = jax.device_put(noise(), where)
    config = settings(max_tokens=20)
    expected, _ = generate(PROMPTS, config)
    generator = Generator(SPEC, Latin1(), "padded", mesh)
    assert generator.generate(params, PROMPTS, config) == expected
    engine = generator.engine(params, 4)
    _, data, model = shape
    held = engine._texts.cache.keys.addressable_shards[0].data.shape
    assert held == (2, 4 // data, 2 // model, WINDOW, 8)
