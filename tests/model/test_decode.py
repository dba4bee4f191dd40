from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from minigpt.config import ModelConfig
from minigpt.model.decode import decode_step, empty_cache, prefill, write_rows
from minigpt.model.gpt import GPT, GPTSpec

SEQ, WIDTH = 24, 12
MODEL = ModelConfig(num_layers=3, num_heads=2, embed_dim=16, seq_length=SEQ)
LENGTHS = np.array([1, 5, WIDTH, 8], np.int32)
SPEC = GPTSpec(model=MODEL, vocab_size=257)
HALF = GPTSpec(model=MODEL, vocab_size=257, compute_dtype=jnp.dtype(jnp.bfloat16))
UNTIED = GPTSpec(
    model=ModelConfig(
        num_layers=1, num_heads=4, embed_dim=16, seq_length=SEQ, tie_embeddings=False, dropout=0.5
    ),
    vocab_size=200,
)


@cache
def graph_and_params(spec):
    """A model whose parameters are all noise, so that every one of them matters."""
    graph, shapes = nnx.split(nnx.eval_shape(lambda: GPT(spec, nnx.Rngs(0))))
    rng = np.random.default_rng(9)
    noise = jax.tree.map(
        lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(np.float32), nnx.to_pure_dict(shapes)
    )
    return graph, jax.device_put(noise)


def tokens_of(spec, seed=0):
    shape = (len(LENGTHS), SEQ)
    return np.random.default_rng(seed).integers(0, spec.vocab_size, shape).astype(np.int32)


@cache
def programs(spec):
    """The full forward pass that training uses, prefill, and a decoding step; compiled."""
    graph, _ = graph_and_params(spec)

    @jax.jit
    def full(params, tokens):
        model = nnx.merge(graph, params)
        return model.logits(model.hidden(tokens))

    @jax.jit
    def start(params, prompts, lengths):
        logits, prefilled = prefill(nnx.merge(graph, params), prompts, lengths)
        return logits, write_rows(
            empty_cache(spec, len(LENGTHS)), jnp.arange(len(LENGTHS)), prefilled
        )

    @jax.jit
    def step(params, tokens, positions, kept):
        return decode_step(nnx.merge(graph, params), tokens, positions, kept, SEQ)

    return full, start, step


def full_logits(spec, tokens):
    """Logits [batch, seq, vocab] without a cache."""
    return np.asarray(programs(spec)[0](graph_and_params(spec)[1], tokens))


def cached_logits(spec, prompts, tokens):
    """Logits [batch, position, vocab] from the end of each row's prompt on, NaN before.

    Longer rows run beyond the context while shorter ones go on, as in generation.
    """
    _, params = graph_and_params(spec)
    _, start, step = programs(spec)
    rows = np.arange(len(LENGTHS))
    found = np.full((*tokens.shape, spec.vocab_size), np.nan, np.float32)
    logits, kept = start(params, prompts, LENGTHS)
    found[rows, LENGTHS - 1] = logits
    for offset in range(SEQ - LENGTHS.min()):
        positions = LENGTHS + offset
        inputs = tokens[rows, np.minimum(positions, SEQ - 1)]
        logits, kept = step(params, inputs, positions, kept)
        inside = positions < SEQ
        found[rows[inside], positions[inside]] = np.asarray(logits)[inside]
    return found


@pytest.mark.parametrize("spec", [SPEC, UNTIED], ids=["tied", "untied"])
def test_the_cache_equals_the_full_forward_pass(spec):
    tokens = tokens_of(spec)
    expected = full_logits(spec, tokens)
    found = cached_logits(spec, tokens[:, :WIDTH], tokens)
    assert expected.std() > 0.5
    for row, length in enumerate(LENGTHS):
        assert np.isnan(found[row, : length - 1]).all()
        np.testing.assert_allclose(
            found[row, length - 1 :], expected[row, length - 1 :], rtol=1e-5, atol=1e-5
        )


def test_padding_has_no_influence():
    tokens = tokens_of(SPEC)
    padding = np.arange(WIDTH) >= LENGTHS[:, None]
    other = np.where(padding, tokens_of(SPEC, seed=1)[:, :WIDTH], tokens[:, :WIDTH])
    assert (other != tokens[:, :WIDTH]).any()
    np.testing.assert_array_equal(
        cached_logits(SPEC, other, tokens), cached_logits(SPEC, tokens[:, :WIDTH], tokens)
    )


def test_a_wider_prompt_array_has_no_influence():
    tokens = tokens_of(SPEC)
    np.testing.assert_allclose(
        cached_logits(SPEC, tokens, tokens),
        cached_logits(SPEC, tokens[:, :WIDTH], tokens),
        rtol=1e-5,
        atol=1e-5,
    )


def test_bfloat16_is_close():
    tokens = tokens_of(SPEC)
    compare = partial(np.testing.assert_allclose, rtol=0.1, atol=0.1)
    found = cached_logits(HALF, tokens[:, :WIDTH], tokens)
    seen = ~np.isnan(found)
    assert (found[seen] != full_logits(SPEC, tokens)[seen]).any()
    compare(found[seen], full_logits(HALF, tokens)[seen])
    compare(found[seen], full_logits(SPEC, tokens)[seen])


def test_the_cache_is_in_the_compute_dtype():
    prompts = tokens_of(HALF)[:, :WIDTH]
    logits, kept = programs(HALF)[1](graph_and_params(HALF)[1], prompts, LENGTHS)
    assert logits.dtype == jnp.float32
    assert {part.dtype for part in kept} == {jnp.dtype(jnp.bfloat16)}
    assert {part.shape for part in kept} == {(3, len(LENGTHS), 2, SEQ, 8)}
