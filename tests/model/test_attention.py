from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minigpt.model.attention import (
    attention_with_dropout,
    blocked_attention,
    causal_attention,
    cudnn_supports,
)


@jax.jit
def plain(q, k, v, factors=1.0):
    """The textbook; ``factors`` multiply the attention weights."""
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / jnp.sqrt(q.shape[-1])
    visible = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
    scores = jnp.where(visible[None, None], scores, -jnp.inf)
    return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores) * factors, v)


def operands(seq, dtype=jnp.float32):
    return [
        jax.random.normal(k, (2, seq, 3, 8), dtype) for k in jax.random.split(jax.random.key(0), 3)
    ]


def outputs(attention, seq):
    """What comes out, and the gradients of all operands."""

    def score(q, k, v):
        return (attention(q, k, v) * jnp.sin(jnp.arange(8.0))).sum()

    return attention(*operands(seq)), *jax.jit(jax.grad(score, (0, 1, 2)))(*operands(seq))


@pytest.mark.parametrize("seq", [1, 16, 128, 200, 300])
def test_blocks_equal_the_textbook_and_its_gradients(seq):
    ours, theirs = outputs(blocked_attention, seq), outputs(plain, seq)
    np.testing.assert_allclose(ours[0], theirs[0], atol=2e-6)
    for got, expected in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5)


@pytest.mark.parametrize("seq", [16, 200, 300])
def test_dropped_weights_are_as_in_the_textbook(seq):
    keys = jax.random.split(jax.random.key(2), 2)
    masks = [
        [jax.random.bernoulli(jax.random.fold_in(key, head), 0.7, (seq, seq)) for head in (5, 6, 7)]
        for key in keys
    ]

    def ours(q, k, v):
        return attention_with_dropout(q, k, v, 0.3, keys, 5)

    def theirs(q, k, v):
        return plain(q, k, v, jnp.array(masks) / 0.7)

    for got, expected in zip(outputs(ours, seq), outputs(theirs, seq), strict=True):
        np.testing.assert_allclose(got, expected, atol=4e-5)


@pytest.mark.parametrize(
    ("gpu", "dtype", "takes"),
    [
        ("7.5", jnp.bfloat16, False),  # a T4
        ("8.6", jnp.bfloat16, True),  # an A10G
        ("9.0", jnp.bfloat16, True),
        ("10.0", jnp.bfloat16, True),
        ("9.0", jnp.float32, False),
    ],
)
def test_cudnn_is_asked_only_where_it_has_a_kernel(monkeypatch, gpu, dtype, takes):
    operand = operands(16, dtype)[0]
    assert not cudnn_supports(operand)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(compute_capability=gpu)])
    assert cudnn_supports(operand) == takes


def test_the_future_is_not_seen():
    q, k, v = operands(150)
    changed = [x.at[:, 140:].set(9.0) for x in (q, k, v)]
    before, after = causal_attention(q, k, v), causal_attention(*changed)
    np.testing.assert_array_equal(before[:, :140], after[:, :140])


def test_bfloat16_is_close():
    got = causal_attention(*operands(130, jnp.bfloat16))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        got.astype(jnp.float32),
        plain(*(x.astype(jnp.float32) for x in operands(130, jnp.bfloat16))),
        atol=0.03,
    )


def test_dropout_of_attention_weights():
    q, k, _ = operands(64)
    ones = jnp.ones_like(q)
    keys = jax.random.split(jax.random.key(1), 2)
    kept = attention_with_dropout(q, k, ones, 0.25, keys)  # the mass that was not dropped
    assert float(kept.std()) > 0.1
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.1)
    np.testing.assert_array_equal(kept, attention_with_dropout(q, k, ones, 0.25, keys))
    one_row = attention_with_dropout(q[1:], k[1:], ones[1:], 0.25, keys[1:])
    np.testing.assert_allclose(kept[1:], one_row, atol=1e-6)
