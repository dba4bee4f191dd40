"""Text generation with cached keys and values.

Rows of a batch may have prompts of different lengths: each row has its own position, and a
position attends to cached ones up to itself.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from minigpt.model.attention import causal_attention
from minigpt.model.gpt import FLOAT32, GPT, Block, GPTSpec, LayerParams, cast_kernels


class Cache(NamedTuple):
    """Keys and values of all layers and positions, in the compute dtype."""

    keys: Float[Array, "layers rows heads seq head_dim"]
    values: Float[Array, "layers rows heads seq head_dim"]


def empty_cache(spec: GPTSpec, rows: int) -> Cache:
    """Room for all positions of so many rows."""
    model = spec.model
    shape = (model.num_layers, rows, model.num_heads, model.seq_length, model.head_dim)
    return Cache(jnp.zeros(shape, spec.compute_dtype), jnp.zeros(shape, spec.compute_dtype))


def prefill(
    model: GPT, tokens: Int[Array, "batch width"], lengths: Int[Array, " batch"]
) -> tuple[Float[Array, "batch vocab"], Cache]:
    """Run prompts, padded at the end, in one pass.

    Args:
        model: the model.
        tokens: prompts; what is beyond a row's length is never attended to by valid positions.
        lengths: tokens of each prompt, at least 1.

    Returns:
        Logits of the token after each prompt, and keys and values of ``width`` positions.
    """
    graph, layers = nnx.split(model.blocks)
    x = model.embed(tokens, jnp.arange(tokens.shape[1])[None])

    def layer(x: Array, parameters: LayerParams) -> tuple[Array, tuple[Array, Array]]:
        block: Block = nnx.merge(graph, parameters)
        q, k, v = block.attention.qkv(block.attention_norm(x))
        x = _finish_layer(block, x, causal_attention(q, k, v))
        return x, (k.swapaxes(1, 2), v.swapaxes(1, 2))

    x, cached = jax.lax.scan(layer, x, layers)
    last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], axis=1)[:, 0]
    return model.logits(model.final_norm(last)), Cache(*cached)


def write_rows(cache: Cache, rows: Int[Array, " batch"], prefilled: Cache) -> Cache:
    """The cache with what ``prefill`` made in these rows; numbers beyond the last are left out."""
    width = prefilled.keys.shape[3]
    return jax.tree.map(
        lambda whole, part: whole.at[:, rows, :, :width].set(part, mode="drop"), cache, prefilled
    )


def decode_step(
    model: GPT,
    tokens: Int[Array, " batch"],
    positions: Int[Array, " batch"],
    cache: Cache,
    visible: int,
) -> tuple[Float[Array, "batch vocab"], Cache]:
    """Run one token of each of the first rows of the cache.

    Args:
        model: the model.
        tokens: of the first ``batch`` rows.
        positions: of the tokens, all below ``visible``.
        cache: is updated in place where the caller donates it.
        visible: attend to this many positions at most; fewer are faster.

    Returns:
        Logits of the next token of each row, and the cache.
    """
    graph, layers = nnx.split(model.blocks)
    batch = tokens.shape[0]
    rows = jnp.arange(batch)
    x = model.embed(tokens[:, None], positions[:, None])
    seen = (jnp.arange(visible) <= positions[:, None])[:, None, None]

    def layer(
        carry: tuple[Array, Cache], indexed: tuple[LayerParams, Array]
    ) -> tuple[tuple[Array, Cache], None]:
        x, cache = carry
        parameters, index = indexed
        block: Block = nnx.merge(graph, parameters)
        q, k, v = block.attention.qkv(block.attention_norm(x))
        cache = Cache(
            cache.keys.at[index, rows, :, positions].set(k[:, 0]),
            cache.values.at[index, rows, :, positions].set(v[:, 0]),
        )
        keys, values = (part[index, :batch, :, :visible] for part in cache)
        scores = jnp.einsum("bthk,bhsk->bhts", q, keys).astype(jnp.float32)
        scores = jnp.where(seen, scores * q.shape[-1] ** -0.5, -1e30)
        probabilities = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        heads = jnp.einsum("bhts,bhsk->bthk", probabilities, values)
        return (_finish_layer(block, x, heads), cache), None

    num_layers = cache.keys.shape[0]
    (x, cache), _ = jax.lax.scan(layer, (x, cache), (layers, jnp.arange(num_layers)))
    return model.logits(model.final_norm(x[:, 0])), cache


def _finish_layer(block: Block, x: Array, heads: Array) -> Array:
    x = x + block.attention.project(heads)
    return x + block.mlp(block.mlp_norm(x))


def decoding_spec(spec: GPTSpec) -> GPTSpec:
    """The model that ``decoding_params`` are parameters of."""
    if spec.compute_dtype == FLOAT32:
        return spec
    return replace(spec, model=replace(spec.model, tie_embeddings=False))


def decoding_params(spec: GPTSpec, params: dict[str, Any]) -> dict[str, Any]:
    """The same model with the operands of its products in the compute dtype already.

    A step of decoding reads every weight once and computes little: casting them in each would
    take longer than the rest. The output projection becomes a parameter of its own; the
    embedding that is looked up stays float32.
    """
    if spec.compute_dtype == FLOAT32:
        return params

    output = params.get("output_embedding", params["token_embedding"]).astype(spec.compute_dtype)
    return cast_kernels(params, spec.compute_dtype) | {"output_embedding": output}
