"""What keeps XLA from moving work to where it costs memory or makes devices wait for each other."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Tree = Any


def in_order(*arrays: Tree) -> Tree:
    """All of them, none before all are computed."""
    return lax.optimization_barrier(arrays)


def once(
    tick: Callable[[Tree, Tree], tuple[Tree, None]], carry: Tree, rows: Tree, one: jax.Array
) -> Tree:
    """As ``lax.scan(tick, carry, rows)[0]`` for rows ``[1, ...]``, as a loop of its own.

    XLA dissolves a loop that it knows to run once, and then holds the arrays in it from the
    beginning of the program to its end. ``one`` is a 1 that it cannot know.
    """

    def body(counted: tuple[jax.Array, Tree]) -> tuple[jax.Array, Tree]:
        return counted[0] + 1, tick(counted[1], jax.tree.map(lambda row: row[0], rows))[0]

    return lax.while_loop(lambda counted: counted[0] < one, body, (jnp.int32(0), carry))[1]
