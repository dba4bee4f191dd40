"""Values and derivatives of the pieces that keep little for the backward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from minigpt.config import ModelConfig
from minigpt.model.gpt import GPT, GPTSpec
from minigpt.model.pointwise import gelu, normalize


def plain_normalize(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def plain_gelu(x, bias):
    return jax.nn.gelu(x.astype(jnp.float32) + bias, approximate=True)


def draw(*shape, seed=0, scale=3.0):
    return scale * jax.random.normal(jax.random.key(seed), shape)


def assert_close(found, expected, tolerance):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(np.float32(found), np.float32(expected), atol=tolerance * scale)


def test_normalize_and_its_derivative():
    x, weight = draw(2, 5, 96) + 7, draw(2, 5, 96, seed=1)
    assert_close(normalize(x), plain_normalize(x), 1e-6)
    found, expected = (
        jax.grad(lambda x, f=f: (f(x) * weight).sum())(x) for f in (normalize, plain_normalize)
    )
    assert_close(found, expected, 3e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gelu_and_its_derivatives(dtype):
    x, bias, weight = draw(2, 5, 96).astype(dtype), draw(96, seed=1), draw(2, 5, 96, seed=2)
    assert_close(gelu(x, bias), plain_gelu(x, bias), 1e-6)
    found, expected = (
        jax.grad(lambda x, b, f=f: (f(x, b) * weight).sum(), (0, 1))(x, bias)
        for f in (gelu, plain_gelu)
    )
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert_close(one, other, 3e-6 if dtype == jnp.float32 else 1e-2)


@pytest.mark.parametrize(("dtype", "bytes_per_width"), [("float32", 64), ("bfloat16", 36)])
def test_what_a_layer_keeps_for_the_backward_pass(dtype, bytes_per_width):
    """16 numbers for each of the width's in float32; there were 32."""
    model = ModelConfig(num_layers=1, num_heads=4, embed_dim=128, seq_length=128)
    spec = GPTSpec(model=model, vocab_size=257, compute_dtype=jnp.dtype(dtype))
    whole = nnx.eval_shape(lambda: GPT(spec, nnx.Rngs(0)))
    graph, layers = nnx.split(whole.blocks)
    layer = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), layers)
    x = jax.ShapeDtypeStruct((4, 128, 128), jnp.float32)

    def kept(layer, x):
        return jax.vjp(lambda layer, x: nnx.merge(graph, layer)(x, None), layer, x)[1]

    found = jax.tree.leaves(jax.eval_shape(kept, layer, x))
    activations = [a for a in found if a.shape[:1] == (4,)]
    num_bytes = sum(a.size * a.dtype.itemsize for a in activations)
    assert num_bytes / x.size == pytest.approx(bytes_per_width, rel=0.02)
