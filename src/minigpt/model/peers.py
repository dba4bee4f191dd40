"""What a model slice needs from the owners of the other slices.

The model is written for a slice: some heads, some hidden units, some rows of the vocabulary, and
between the products perhaps some positions of the sequence. Where mathematics needs the others, it
calls one of these functions, and whoever splits the model hands them in. On one device nothing is
missing: products are plain products, and the rest is the identity.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

Product = Callable[[str, jax.Array, jax.Array], jax.Array]
"""As ``einsum``: equation, activations, kernel."""
Exchange = Callable[[jax.Array], jax.Array]
FirstIndex = Callable[[int], int | jax.Array]


def _same(x: jax.Array) -> jax.Array:
    return x


def _einsum(equation: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.einsum(equation, x, kernel)


def _float32_einsum(equation: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.einsum(equation, x, kernel).astype(jnp.float32)


def _zero(_: int) -> int:
    return 0


@dataclass(frozen=True)
class Peers:
    """Exchanges with the owners of the other slices; the defaults own everything.

    Activations are ``[batch, positions, ...]``: in the residual stream the positions held, in
    attention and MLP all of them.

    Attributes:
        enter: the product from the residual stream into the heads or hidden units held.
        leave: the product from them back, added up over all owners, in float32.
        first_head: from the number of heads held, the global number of the first.
        own: from an array of all positions, those held in the residual stream.
        gather: from the positions held, all of them.
        sequence_parts: into how many parts the positions are divided.
        sum_hidden: adds up hidden states of all positions over the owners of vocabulary rows;
            the positions held.
        sum_vocab: adds up over the owners of vocabulary rows.
        max_vocab: elementwise maximum over the owners of vocabulary rows.
        first_vocab: from the number of rows held, the token id of the first.
        differ: marks a constant as differing between owners of anything (for loop carries).
    """

    enter: Product = _einsum
    leave: Product = _float32_einsum
    first_head: FirstIndex = _zero
    own: Exchange = _same
    gather: Exchange = _same
    sequence_parts: int = 1
    sum_hidden: Exchange = _same
    sum_vocab: Exchange = _same
    max_vocab: Exchange = _same
    first_vocab: FirstIndex = _zero
    differ: Exchange = _same


ALONE = Peers()
