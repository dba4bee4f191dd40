"""Next-token cross-entropy that never holds the logits of the whole vocabulary.

The vocabulary is walked in chunks. Going forward, each chunk of logits updates a running maximum
and sum of exponentials (Milakov and Gimelshein 2018, "Online normalizer calculation for
softmax"); going backward, it is computed again and turned into its part of both gradients at
once. One product more than with stored logits, and ``num_chunks`` times less memory.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from minigpt.model.peers import ALONE, Peers
from minigpt.model.sizes import chunk_size

_MASKED = -1e30


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def cross_entropy_sum(
    x: Float[Array, "batch own embed"],
    output_embedding: Float[Array, "vocab embed"],
    targets: Int[Array, "batch seq"],
    weights: Float[Array, "batch seq"],
    vocab_size: int,
    peers: Peers = ALONE,
) -> Float[Array, ""]:
    """Sum over targets of weight times ``-log softmax(x @ output_embedding.T)[target]``.

    Args:
        x: final hidden states of the positions held, in the compute dtype.
        output_embedding: the rows held here; those from ``vocab_size`` on, counted over all
            owners, are padding and take no part.
        targets: token ids below ``vocab_size``.
        weights: 0 for a target that does not count; no gradient flows to them.
        vocab_size: valid rows of the whole embedding.
        peers: the owners of the other rows and positions.

    Returns:
        The sum in float32, to be divided by the number of targets that count.
    """
    return _forward(x, output_embedding, targets, weights, vocab_size, peers)[0]


@jax.named_scope("cross_entropy")
def _forward(x, output_embedding, targets, weights, vocab_size, peers):  # noqa: ANN001, ANN202
    x = peers.gather(x)
    chunks = _chunks(output_embedding, x.dtype, peers)

    def accumulate(carry, chunk):  # noqa: ANN001, ANN202
        maximum, total, hit = carry
        logits, is_target = _logits(x, targets, chunk, vocab_size)
        new_maximum = jnp.maximum(maximum, logits.max(-1))
        total = total * jnp.exp(maximum - new_maximum)
        total += jnp.exp(logits - new_maximum[..., None]).sum(-1)
        hit += jnp.where(is_target, logits, 0.0).sum(-1)
        return (new_maximum, total, hit), None

    zeros = jnp.zeros(targets.shape, jnp.float32)
    start = jax.tree.map(peers.differ, (zeros + _MASKED, zeros, zeros))
    (maximum, total, hit), _ = jax.lax.scan(accumulate, start, chunks)
    highest = peers.max_vocab(maximum)
    total, hit = peers.sum_vocab(jnp.stack([total * jnp.exp(maximum - highest), hit]))
    log_normalizer = highest + jnp.log(total)
    loss = ((log_normalizer - hit) * weights).sum()
    return loss, (x, output_embedding, targets, weights, log_normalizer)


@jax.named_scope("cross_entropy")
def _backward(vocab_size, peers, residuals, gradient):  # noqa: ANN001, ANN202
    x, output_embedding, targets, weights, log_normalizer = residuals
    scale = (gradient * weights)[..., None]

    def accumulate(d_x, chunk):  # noqa: ANN001, ANN202
        logits, is_target = _logits(x, targets, chunk, vocab_size)
        d_logits = (jnp.exp(logits - log_normalizer[..., None]) - is_target) * scale
        # Both products read it: without the barrier XLA:CPU computes it twice.
        d_logits = jax.lax.optimization_barrier(d_logits.astype(x.dtype))
        d_x += jnp.einsum("btv,vd->btd", d_logits, chunk[0], preferred_element_type=jnp.float32)
        return d_x, jnp.einsum("btv,btd->vd", d_logits, x, preferred_element_type=jnp.float32)

    zeros = peers.differ(jnp.zeros(x.shape, jnp.float32))
    d_x, d_chunks = jax.lax.scan(accumulate, zeros, _chunks(output_embedding, x.dtype, peers))
    d_embedding = d_chunks.reshape(output_embedding.shape).astype(output_embedding.dtype)
    return peers.sum_hidden(d_x).astype(x.dtype), d_embedding, None, None


cross_entropy_sum.defvjp(_forward, _backward)


def _chunks(output_embedding: Array, dtype: jnp.dtype, peers: Peers) -> tuple[Array, Array]:
    """The embedding as ``[chunks, chunk, embed]`` in ``dtype``, and each chunk's first id."""
    vocab, embed = output_embedding.shape
    chunk = chunk_size(vocab)
    shape = (vocab // chunk, chunk, embed)
    first_ids = peers.first_vocab(vocab) + jnp.arange(0, vocab, chunk)
    return output_embedding.astype(dtype).reshape(shape), first_ids


def _logits(
    x: Array, targets: Array, chunk: tuple[Array, Array], vocab_size: int
) -> tuple[Array, Array]:
    """float32 logits of a chunk, padding masked, and where the target is; both [batch, seq, v]."""
    embedding, first_id = chunk
    ids = first_id + jnp.arange(embedding.shape[0])
    logits = jnp.einsum("btd,vd->btv", x, embedding, preferred_element_type=jnp.float32)
    logits = jnp.where(ids < vocab_size, logits, _MASKED)
    return logits, ids == targets[..., None]


def target_weights(lengths: Int[Array, " batch"], seq_length: int) -> Float[Array, "batch seq"]:
    """1 for each target within its row's valid tokens, else 0."""
    return (jnp.arange(1, seq_length + 1) < lengths[:, None]).astype(jnp.float32)
