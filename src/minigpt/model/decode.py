"""Text generation with cached keys and values.

Rows of a batch may have prompts of different lengths: each row has its own position, and a
position attends to cached ones up to itself.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from minigpt.model.attention import causal_attention
from minigpt.model.gpt import GPT, Block, LayerParams


class Cache(NamedTuple):
    """Keys and values of all layers and positions, in the compute dtype."""

    keys: Float[Array, "layers batch seq heads head_dim"]
    values: Float[Array, "layers batch seq heads head_dim"]


def prefill(
    model: GPT, tokens: Int[Array, "batch seq"], lengths: Int[Array, " batch"], capacity: int
) -> tuple[Float[Array, "batch vocab"], Cache]:
    """Run prompts, padded at the end, in one pass.

    Args:
        model: the model.
        tokens: prompts; what is beyond a row's length is never attended to by valid positions
            and is overwritten in the cache as the row grows.
        lengths: tokens of each prompt, at least 1.
        capacity: positions of the cache, at most the model's ``seq_length``.

    Returns:
        Logits of the token after each prompt, and the cache.
    """
    graph, layers = nnx.split(model.blocks)
    x = model.embed(tokens, jnp.arange(tokens.shape[1])[None])

    def layer(x: Array, parameters: LayerParams) -> tuple[Array, tuple[Array, Array]]:
        block: Block = nnx.merge(graph, parameters)
        q, k, v = block.attention.qkv(block.attention_norm(x))
        return _finish_layer(block, x, causal_attention(q, k, v)), (k, v)

    x, cached = jax.lax.scan(layer, x, layers)
    unused = ((0, 0), (0, 0), (0, capacity - tokens.shape[1]), (0, 0), (0, 0))
    last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)[:, 0]
    cache = Cache(*(jnp.pad(part, unused) for part in cached))
    return model.logits(model.final_norm(last)), cache


def decode_step(
    model: GPT, tokens: Int[Array, " batch"], positions: Int[Array, " batch"], cache: Cache
) -> tuple[Float[Array, "batch vocab"], Cache]:
    """Run one token of each row at its position; returns the logits of the next one."""
    graph, layers = nnx.split(model.blocks)
    rows = jnp.arange(tokens.shape[0])
    x = model.embed(tokens[:, None], positions[:, None])
    visible = jnp.arange(cache.keys.shape[2]) <= positions[:, None]

    def layer(
        x: Array, scanned: tuple[LayerParams, Array, Array]
    ) -> tuple[Array, tuple[Array, Array]]:
        parameters, keys, values = scanned
        block: Block = nnx.merge(graph, parameters)
        q, k, v = block.attention.qkv(block.attention_norm(x))
        keys = keys.at[rows, positions].set(k[:, 0])
        values = values.at[rows, positions].set(v[:, 0])
        scores = jnp.einsum("bthk,bshk->bhts", q, keys).astype(jnp.float32)
        scores = jnp.where(visible[:, None, None], scores * q.shape[-1] ** -0.5, -1e30)
        probabilities = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        heads = jnp.einsum("bhts,bshk->bthk", probabilities, values)
        return _finish_layer(block, x, heads), (keys, values)

    x, updated = jax.lax.scan(layer, x, (layers, cache.keys, cache.values))
    return model.logits(model.final_norm(x[:, 0])), Cache(*updated)


def _finish_layer(block: Block, x: Array, heads: Array) -> Array:
    x = x + block.attention.project(heads)
    return x + block.mlp(block.mlp_norm(x))
