"""Products of tensor-parallel peers that divide the sequence too (Korthikanti et al. 2022, 4.2.2).

Between the products a device holds some positions of the residual stream. The product into heads
or hidden units gathers all positions first; the product back leaves each device its positions of
the sum: an all-gather and a reduce-scatter, which together move what the all-reduce of plain tensor
parallelism does. Going backward each becomes the other.

The gradient of a kernel needs all positions of its input, which would be the largest thing kept for
the backward pass, once on every peer. As in the paper they are gathered again instead.

Collectives that do not need each other's results are tied by ``optimization_barrier``: devices must
issue them in the same order (see ``pipeline``).
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from minigpt.parallel.axes import Axes

Product = Callable[[str, jax.Array, jax.Array], jax.Array]


def entering_product(axes: Axes, *, keep_gathered: bool) -> Product:
    """``einsum(equation, x, kernel)`` of all positions, from those held.

    Args:
        axes: the mesh's axes.
        keep_gathered: keep the gathered input for the backward pass; where each layer's forward
            pass is computed again just before, gathering once more would save nothing.
    """

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def product(equation: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
        return forward(equation, x, kernel)[0]

    def forward(equation: str, x: jax.Array, kernel: jax.Array):  # noqa: ANN202
        gathered = axes.gather(x, "model", dim=1)
        kept = gathered if keep_gathered else x
        return jnp.einsum(equation, gathered, kernel), (kept, kernel)

    def backward(equation: str, residuals: tuple[jax.Array, jax.Array], d_out: jax.Array):  # noqa: ANN202
        x, kernel = residuals
        if not keep_gathered:
            x, d_out = lax.optimization_barrier((x, d_out))
            x, d_out = lax.optimization_barrier((axes.gather(x, "model", dim=1), d_out))
        d_x, d_kernel = _pull(equation, x, kernel, d_out)
        return axes.sum_scatter(d_x, "model", dim=1), d_kernel

    product.defvjp(forward, backward)
    return product


def leaving_product(axes: Axes) -> Product:
    """The positions held of ``einsum(equation, x, kernel)`` added up over the peers, in float32."""

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def product(equation: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
        return forward(equation, x, kernel)[0]

    def forward(equation: str, x: jax.Array, kernel: jax.Array):  # noqa: ANN202
        out = jnp.einsum(equation, x, kernel).astype(jnp.float32)
        return axes.sum_scatter(out, "model", dim=1), (x, kernel)

    def backward(equation: str, residuals: tuple[jax.Array, jax.Array], d_out: jax.Array):  # noqa: ANN202
        x, kernel = residuals
        x, d_out = lax.optimization_barrier((x, d_out))  # x may be computed again, with gathers
        return _pull(equation, x, kernel, axes.gather(d_out.astype(x.dtype), "model", dim=1))

    product.defvjp(forward, backward)
    return product


def _pull(
    equation: str, x: jax.Array, kernel: jax.Array, d_out: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gradients of both operands of a product."""
    return jax.vjp(partial(jnp.einsum, equation), x, kernel)[1](d_out)
