"""What a model slice needs from the owners of the other slices.

The model is written for a slice: some heads, some hidden units, some rows of the vocabulary. Where
mathematics needs the others, it calls one of these functions, and whoever splits the model hands
them in. On one device nothing is missing, and all are the identity.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax

Exchange = Callable[[jax.Array], jax.Array]
FirstIndex = Callable[[int], int | jax.Array]


def _same(x: jax.Array) -> jax.Array:
    return x


def _zero(_: int) -> int:
    return 0


@dataclass(frozen=True)
class Peers:
    """Exchanges with the owners of the other slices; the defaults own everything.

    Attributes:
        sum_partial: adds up partial products over the owners of heads and hidden units.
        first_head: from the number of heads held, the global number of the first.
        sum_vocab: adds up over the owners of vocabulary rows.
        max_vocab: elementwise maximum over the owners of vocabulary rows.
        first_vocab: from the number of rows held, the token id of the first.
        differ: marks a constant as differing between owners of anything (for loop carries).
    """

    sum_partial: Exchange = _same
    first_head: FirstIndex = _zero
    sum_vocab: Exchange = _same
    max_vocab: Exchange = _same
    first_vocab: FirstIndex = _zero
    differ: Exchange = _same


ALONE = Peers()
