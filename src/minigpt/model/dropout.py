"""Dropout whose masks do not depend on how a batch is split."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from minigpt.model.peers import ALONE, Peers


def fold(keys: Key[Array, " batch"] | None, value: int | Array) -> Key[Array, " batch"] | None:
    """Each row's key for one layer, place or head; None stays None (no dropout)."""
    return None if keys is None else fold_rows(keys, value)


def fold_rows(keys: Key[Array, " batch"], value: int | Array) -> Key[Array, " batch"]:
    """Each row's key for one layer, place or head."""
    return jax.vmap(lambda key: jax.random.fold_in(key, value))(keys)


@jax.named_scope("dropout")
def dropout(
    x: Float[Array, "batch ..."],
    rate: float,
    keys: Key[Array, " batch"] | None,
    peers: Peers = ALONE,
) -> Float[Array, "batch ..."]:
    """Zero a share ``rate`` of ``x`` and scale the rest up, with one key for each row.

    Args:
        x: activations.
        rate: probability of zeroing an element.
        keys: None in evaluation, where ``x`` is returned as it is.
        peers: the owners of the other positions, where ``x`` is ``[batch, own positions, ...]``;
            the mask is drawn for all positions, so that it does not depend on how they are split.
    """
    if keys is None or rate == 0.0:
        return x
    shape = (x.shape[1] * peers.sequence_parts, *x.shape[2:])
    return scaled_where(peers.own(keep_mask(keys, rate, shape)), x, rate)


def keep_mask(keys: Key[Array, " batch"], rate: float, shape: tuple[int, ...]) -> Array:
    """Which elements of each row are kept, ``[batch, *shape]``."""
    return jax.vmap(lambda key: jax.random.bernoulli(key, 1.0 - rate, shape))(keys)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def scaled_where(keep: Array, x: Array, rate: float) -> Array:
    """``x`` scaled up where it is kept, else 0; only the mask is needed going backward."""
    return jnp.where(keep, x / (1.0 - rate), 0.0).astype(x.dtype)


scaled_where.defvjp(
    lambda keep, x, rate: (scaled_where(keep, x, rate), keep),
    lambda rate, keep, d_out: (None, scaled_where(keep, d_out, rate)),
)
