"""Causal attention: softmax(q k^T / sqrt(head_dim)) v, never a whole score matrix at once.

Shapes: b batch, t query position, s key position, h head, k head dim.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from minigpt.model.dropout import fold_rows, keep_mask, scaled_where
from minigpt.model.sizes import BLOCK

_MASKED = -1e30
_AMPERE = (8, 0)  # the first GPUs that cuDNN's attention runs on; a T4 is (7, 5)


def causal_attention(
    q: Float[Array, "batch seq heads head_dim"],
    k: Float[Array, "batch seq heads head_dim"],
    v: Float[Array, "batch seq heads head_dim"],
) -> Float[Array, "batch seq heads head_dim"]:
    """Attention of each position to itself and those before, by the platform's best kernel.

    On an NVIDIA GPU (Ampere or newer) with 16-bit operands that is cuDNN's fused attention;
    elsewhere query blocks that skip the keys they may not see and compute scores again going
    backward (Dao et al. 2022, FlashAttention, section 3.1, without the tiling of keys).
    """
    if cudnn_supports(q):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
    return blocked_attention(q, k, v)


def cudnn_supports(q: Array) -> bool:
    """Whether cuDNN's attention takes this dtype and head size, on the GPU that jax runs on."""
    head_dim = q.shape[-1]
    return (
        jax.default_backend() == "gpu"
        and q.dtype in (jnp.bfloat16, jnp.float16)
        and head_dim % 8 == 0
        and head_dim <= 128
        and _compute_capability() >= _AMPERE
    )


def _compute_capability() -> tuple[int, ...]:
    """Of this process's GPUs, as (8, 6)."""
    return tuple(int(part) for part in jax.local_devices()[0].compute_capability.split("."))


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def blocked_attention(
    q: Array, k: Array, v: Array, keep: Array | None = None, rate: float = 0.0
) -> Array:
    """Causal attention in blocks of queries; shapes and dtypes as ``causal_attention``.

    ``keep`` [b, h, t, s] says which attention weights are not dropped, at a rate of ``rate``.
    """
    return _forward(q, k, v, keep, rate)[0]


@jax.named_scope("attention")
def _forward(q, k, v, keep, rate):  # noqa: ANN001, ANN202
    outputs, log_normalizers = [], []
    for start, stop in _blocks(q.shape[1]):
        scores = _scores(q[:, start:stop], k[:, :stop], start)
        maximum = scores.max(-1, keepdims=True)
        exponentials = jnp.exp(scores - maximum)
        total = exponentials.sum(-1, keepdims=True)
        probabilities = _kept(exponentials / total, keep, rate, start).astype(q.dtype)
        outputs.append(jnp.einsum("bhts,bshk->bthk", probabilities, v[:, :stop]))
        log_normalizers.append(maximum + jnp.log(total))
    return jnp.concatenate(outputs, axis=1), (q, k, v, keep, log_normalizers)


@jax.named_scope("attention")
def _backward(rate, residuals, d_out):  # noqa: ANN001, ANN202
    q, k, v, keep, log_normalizers = residuals
    seq = q.shape[1]
    scale = q.shape[-1] ** -0.5
    d_q = []
    d_k = d_v = jnp.zeros(k.shape, jnp.float32)
    for (start, stop), log_normalizer in zip(_blocks(seq), log_normalizers, strict=True):
        q_block, d_block = q[:, start:stop], d_out[:, start:stop]
        probabilities = jnp.exp(_scores(q_block, k[:, :stop], start) - log_normalizer)
        d_probabilities = jnp.einsum("bthk,bshk->bhts", d_block, v[:, :stop]).astype(jnp.float32)
        d_probabilities = _kept(d_probabilities, keep, rate, start)
        inner = (probabilities * d_probabilities).sum(-1, keepdims=True)
        d_scores = (probabilities * (d_probabilities - inner) * scale).astype(q.dtype)
        d_q.append(jnp.einsum("bhts,bshk->bthk", d_scores, k[:, :stop]))
        unseen = ((0, 0), (0, seq - stop), (0, 0), (0, 0))
        d_k += jnp.pad(jnp.einsum("bhts,bthk->bshk", d_scores, q_block), unseen)
        used = _kept(probabilities, keep, rate, start).astype(q.dtype)
        d_v += jnp.pad(jnp.einsum("bhts,bthk->bshk", used, d_block), unseen)
    return jnp.concatenate(d_q, axis=1), d_k.astype(k.dtype), d_v.astype(v.dtype), None


blocked_attention.defvjp(_forward, _backward)


def attention_with_dropout(
    q: Float[Array, "batch seq heads head_dim"],
    k: Float[Array, "batch seq heads head_dim"],
    v: Float[Array, "batch seq heads head_dim"],
    rate: float,
    keys: Key[Array, " batch"],
    first_head: int | Array = 0,
) -> Float[Array, "batch seq heads head_dim"]:
    """Causal attention that drops a share ``rate`` of the attention weights, as GPT-2 does.

    Fused kernels cannot draw the masks that MiniGPT promises (one key for each row and head, so
    that they are the same on every mesh); this one holds them, a byte for each attention weight.
    ``first_head`` is the global number of the first head held here.
    """
    seq = q.shape[1]

    def of_head(head: Array) -> Array:
        return keep_mask(fold_rows(keys, head), rate, (seq, seq))

    keep = jax.vmap(of_head, out_axes=1)(first_head + jnp.arange(q.shape[2]))
    return blocked_attention(q, k, v, keep, rate)


def _kept(weights: Array, keep: Array | None, rate: float, start: int) -> Array:
    """Attention weights [b, h, t, s] of a block from ``start`` on, after dropout."""
    if keep is None:
        return weights
    block = keep[:, :, start : start + weights.shape[2], : weights.shape[3]]
    return scaled_where(block, weights, rate)


def _scores(q: Array, k: Array, first_query: int) -> Array:
    """Scaled float32 scores [b, h, t, s] with the future masked."""
    scores = jnp.einsum("bthk,bshk->bhts", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    queries = first_query + jnp.arange(q.shape[1])
    return jnp.where(queries[:, None] >= jnp.arange(k.shape[1]), scores, _MASKED)


def _blocks(seq: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK, seq)) for start in range(0, seq, BLOCK)]
