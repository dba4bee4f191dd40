import dataclasses
import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from minigpt.config import ModelConfig
from minigpt.model.dropout import dropout
from minigpt.model.flops import num_parameters, train_flops_per_token
from minigpt.model.gpt import GPT, GPTSpec, run_layer

TINY = ModelConfig(num_layers=3, num_heads=2, embed_dim=16, seq_length=24)


def spec_of(model=TINY, **changes):
    return GPTSpec(model=model, vocab_size=257, **changes)


def textbook_loss(model, tokens):
    """GPT-2 written from the paper's formulas in NumPy float64: an independent oracle."""

    def array(param):
        return np.asarray(param[...], np.float64)

    def norm(x, ln, i=None):
        scale, bias = (array(p) if i is None else array(p)[i] for p in (ln.scale, ln.bias))
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(
            x.var(-1, keepdims=True) + 1e-5
        ) * scale + bias

    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    wte = array(model.token_embedding)
    x = wte[inputs] + array(model.position_embedding)[: inputs.shape[1]]
    blocks = model.blocks
    for i in range(model.spec.model.num_layers):
        h = norm(x, blocks.attention_norm, i)
        qkv = np.einsum("btd,chkd->cbhtk", h, array(blocks.attention.qkv_kernel)[i])
        q, k, v = qkv + array(blocks.attention.qkv_bias)[i][:, None, :, None, :]
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
        heads = softmax(scores) @ v
        x = x + np.einsum("bhtk,dhk->btd", heads, array(blocks.attention.out_kernel)[i])
        x = x + array(blocks.attention.out_bias)[i]
        h = norm(x, blocks.mlp_norm, i) @ array(blocks.mlp.up_kernel)[i].T
        h = gelu(h + array(blocks.mlp.up_bias)[i])
        x = x + h @ array(blocks.mlp.down_kernel)[i].T + array(blocks.mlp.down_bias)[i]
    logits = norm(x, model.final_norm) @ wte[: model.spec.vocab_size].T
    log_probs = np.log(softmax(logits))
    return -np.take_along_axis(log_probs, targets[..., None], -1).sum()


@cache
def noisy_params(model):
    """Parameters whose biases and norms are not at their neutral initial values."""

    @jax.jit
    def create():
        params = nnx.to_pure_dict(nnx.state(GPT(spec_of(model), nnx.Rngs(0))))
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(9), len(leaves))
        noise = [0.05 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
        return jax.tree.map(jnp.add, params, jax.tree.unflatten(tree, noise))

    return create()


def graph_of(spec):
    return nnx.graphdef(nnx.eval_shape(lambda: GPT(spec, nnx.Rngs(0))))


def loss_of(spec, *arguments):
    graph = graph_of(spec)
    run = jax.jit(lambda params, *rest: nnx.merge(graph, params).loss_sum(*rest))
    return run(noisy_params(TINY), *arguments)


def tokens_of(batch=4, seq=20):
    return jax.random.randint(jax.random.key(3), (batch, seq + 1), 0, 257)


WEIGHTS = np.ones((4, 20), np.float32)


def test_equals_gpt2_written_from_the_paper():
    tokens = tokens_of()
    model = nnx.merge(graph_of(spec_of()), noisy_params(TINY))
    expected = textbook_loss(model, np.asarray(tokens))
    np.testing.assert_allclose(loss_of(spec_of(), tokens, jnp.array(WEIGHTS)), expected, rtol=1e-6)


def test_remat_changes_nothing():
    def gradient(spec):
        graph = graph_of(spec)

        def loss(params):
            return nnx.merge(graph, params).loss_sum(tokens_of(), jnp.array(WEIGHTS))

        return jax.jit(jax.grad(loss))(noisy_params(TINY))

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        gradient(spec_of()),
        gradient(spec_of(remat=True)),
    )


def test_bfloat16_is_close_to_float32():
    exact = loss_of(spec_of(), tokens_of(), jnp.array(WEIGHTS))
    half = spec_of(compute_dtype=jnp.dtype(jnp.bfloat16))
    rounded = loss_of(half, tokens_of(), jnp.array(WEIGHTS))
    assert exact != rounded
    np.testing.assert_allclose(exact, rounded, rtol=5e-3)


def test_initialisation_is_gpt2s():
    model = dataclasses.replace(TINY, num_layers=8, embed_dim=64)
    params = jax.jit(lambda: nnx.to_pure_dict(nnx.state(GPT(spec_of(model), nnx.Rngs(0)))))()
    attention, mlp = params["blocks"]["attention"], params["blocks"]["mlp"]
    for param, std in (
        (params["token_embedding"], 0.02),
        (params["position_embedding"], 0.02),
        (attention["qkv_kernel"], 0.02),
        (mlp["up_kernel"], 0.02),
        (attention["out_kernel"], 0.02 / 4),
        (mlp["down_kernel"], 0.02 / 4),
    ):
        assert float(param.std()) == pytest.approx(std, rel=0.05)
    assert not np.array_equal(attention["qkv_kernel"][0], attention["qkv_kernel"][1])
    assert not attention["qkv_bias"].any()


def test_dropout_runs_in_training_only_and_by_row():
    spec, tokens, weights = spec_of(dataclasses.replace(TINY, dropout=0.3)), tokens_of(), WEIGHTS
    keys = jax.random.split(jax.random.key(0), 4)
    evaluated = loss_of(spec, tokens, jnp.array(weights))
    trained = loss_of(spec, tokens, jnp.array(weights), keys)
    assert evaluated == loss_of(spec_of(), tokens, jnp.array(weights))
    assert abs(trained - evaluated) > 1e-3 * evaluated
    halves = [
        loss_of(spec, tokens[i : i + 2], jnp.array(weights[:2]), keys[i : i + 2]) for i in (0, 2)
    ]
    np.testing.assert_allclose(sum(halves), trained, rtol=1e-6)


def test_every_layer_drops_something_else():
    """Layers of equal parameters differ by their masks, and by nothing else."""
    model = GPT(spec_of(dataclasses.replace(TINY, dropout=0.3)), nnx.Rngs(0))
    graph, layers = nnx.split(model.blocks)
    params = jax.tree.map(lambda leaf: leaf[0], layers)
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(jax.random.key(1), (2, 8, TINY.embed_dim))

    def outputs(keys):
        return [run_layer(graph, params, x, keys, n, remat=False) for n in range(3)]

    for first, second in itertools.combinations(outputs(keys), 2):
        assert not np.array_equal(first, second)
    for other in outputs(None)[1:]:
        np.testing.assert_array_equal(outputs(None)[0], other)


def test_dropout_keeps_the_mean():
    keys = jax.random.split(jax.random.key(0), 8)
    dropped = dropout(jnp.ones((8, 1000)), 0.25, keys)
    assert float((dropped == 0).mean()) == pytest.approx(0.25, abs=0.02)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.03)
    assert not np.array_equal(dropped[0], dropped[1])


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted(tied):
    model = dataclasses.replace(TINY, tie_embeddings=tied)
    params = nnx.to_pure_dict(nnx.state(GPT(spec_of(model), nnx.Rngs(0))))
    padding = (384 - 257) * 16 * (1 if tied else 2)
    assert num_parameters(model, 257) == sum(p.size for p in jax.tree.leaves(params)) - padding


def test_gpt2_small_has_124_million_parameters_and_known_flops():
    small = ModelConfig(num_layers=12, num_heads=12, embed_dim=768, seq_length=1024)
    assert num_parameters(small, 50257) == 124_439_808
    # Nearly all parameters are in products: only positions, biases and norms are not.
    flops = train_flops_per_token(small, 50257)
    assert flops == pytest.approx(6 * 124_439_808 + 12 * 12 * 768 * 1024, rel=0.01)
    assert flops < 6 * 124_439_808 + 12 * 12 * 768 * 1024


def test_program_size_does_not_grow_with_depth():
    def operations(num_layers):
        spec = spec_of(dataclasses.replace(TINY, num_layers=num_layers))
        graph, params = nnx.split(nnx.eval_shape(lambda: GPT(spec, nnx.Rngs(0))))
        gradient = jax.grad(lambda p: nnx.merge(graph, p).loss_sum(tokens_of(), jnp.array(WEIGHTS)))
        return jax.jit(gradient).lower(params).as_text().count("\n")

    assert operations(12) == operations(2)
