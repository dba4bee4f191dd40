import jax
import jax.numpy as jnp
import numpy as np
import pytest

from minigpt.model import sizes
from minigpt.model.loss import cross_entropy_sum, target_weights
from minigpt.model.sizes import chunk_size


def plain(x, embedding, targets, weights, vocab_size):
    """The textbook formula over all logits at once."""
    logits = jnp.einsum("btd,vd->btv", x, embedding)[..., :vocab_size].astype(jnp.float32)
    log_probs = jax.nn.log_softmax(logits)
    hit = jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
    return -(hit * weights).sum()


def example(vocab=384, vocab_size=300, batch=2, seq=8, embed=16):
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (batch, seq, embed))
    embedding = jax.random.normal(keys[1], (vocab, embed))
    targets = jax.random.randint(keys[2], (batch, seq), 0, vocab_size)
    weights = jax.random.bernoulli(keys[3], 0.7, (batch, seq)).astype(jnp.float32)
    return x, embedding, targets, weights


@pytest.mark.parametrize("max_chunk", [64, 128, 10_000])
def test_equals_the_plain_loss_and_its_gradients(monkeypatch, max_chunk):
    monkeypatch.setattr(sizes, "MAX_CHUNK", max_chunk)
    x, embedding, targets, weights = example()

    def value_and_grads(function):
        return jax.value_and_grad(function, (0, 1))(x, embedding, targets, weights, 300)

    ours, theirs = value_and_grads(cross_entropy_sum), value_and_grads(plain)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    for got, expected in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-5)


def test_padding_of_the_vocabulary_takes_no_part():
    x, embedding, targets, weights = example()
    changed = embedding.at[300:].set(100.0)
    losses = [cross_entropy_sum(x, e, targets, weights, 300) for e in (embedding, changed)]
    assert losses[0] == losses[1]
    gradient = jax.grad(cross_entropy_sum, 1)(x, changed, targets, weights, 300)
    assert not gradient[300:].any()


def test_targets_without_weight_have_no_gradient():
    x, embedding, targets, weights = example()
    gradient = jax.grad(cross_entropy_sum)(x, embedding, targets, weights, 300)
    np.testing.assert_array_equal((gradient == 0).all(-1), weights == 0)


def test_bfloat16_operands_keep_a_float32_loss():
    x, embedding, targets, weights = example()
    got = cross_entropy_sum(x.astype(jnp.bfloat16), embedding, targets, weights, 300)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, plain(x, embedding, targets, weights, 300), rtol=1e-2)


def test_memory_does_not_hold_all_logits():
    """2 x 256 x 50304 logits alone are 103 MB in float32."""
    x, embedding, targets, weights = example(50304, 50257, 2, 256, 32)

    def temporary_bytes(function):
        gradient = jax.jit(jax.grad(lambda x, e: function(x, e, targets, weights, 50257), (0, 1)))
        return gradient.lower(x, embedding).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(cross_entropy_sum) * 5 < temporary_bytes(plain)


@pytest.mark.parametrize("vocab", [128, 384, 32000, 50304, 25152])
def test_chunks_divide_the_vocabulary(vocab):
    assert vocab % chunk_size(vocab) == 0
    assert min(vocab, 1000) <= chunk_size(vocab) <= sizes.MAX_CHUNK


def test_a_target_counts_if_it_is_within_the_row():
    weights = target_weights(jnp.array([5, 3, 1, 0]), 4)
    np.testing.assert_array_equal(weights, [[1, 1, 1, 1], [1, 1, 0, 0], [0] * 4, [0] * 4])
