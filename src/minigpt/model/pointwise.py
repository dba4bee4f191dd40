"""Normalisation and GELU with derivatives that keep little for the backward pass.

Left to itself, jax keeps three arrays of the width of each normalisation and five of the width of
each GELU, more than everything else in a layer together; these keep one of each.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_EPSILON = 1e-5
_SQRT_2_OVER_PI = 0.7978845608028654
_CUBIC = 0.044715


@jax.custom_vjp
def normalize(x: Float[Array, "... embed"]) -> Float[Array, "... embed"]:
    """Zero mean and unit variance in the last dimension, in float32 (Ba et al. 2016)."""
    return _normalize_forward(x)[0]


@jax.named_scope("normalize")
def _normalize_forward(x):  # noqa: ANN001, ANN202
    x = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + _EPSILON)
    normal = x * scale
    return normal, (normal, scale)


@jax.named_scope("normalize")
def _normalize_backward(residuals, d_normal):  # noqa: ANN001, ANN202
    normal, scale = residuals
    along = (d_normal * normal).mean(-1, keepdims=True)
    return (scale * (d_normal - d_normal.mean(-1, keepdims=True) - normal * along),)


normalize.defvjp(_normalize_forward, _normalize_backward)


@jax.custom_vjp
def gelu(x: Float[Array, "... hidden"], bias: Float[Array, " hidden"]) -> Array:
    """``gelu(x + bias)`` in float32, with tanh (Hendrycks and Gimpel 2016, section 2)."""
    return _gelu_forward(x, bias)[0]


@jax.named_scope("gelu")
def _gelu_forward(x, bias):  # noqa: ANN001, ANN202
    return _gelu_and_derivative(x, bias)[0], (x, bias)


@jax.named_scope("gelu")
def _gelu_backward(residuals, d_out):  # noqa: ANN001, ANN202
    x, bias = residuals
    d_x = d_out * _gelu_and_derivative(x, bias)[1]
    return d_x.astype(x.dtype), d_x.sum(range(d_x.ndim - 1))


gelu.defvjp(_gelu_forward, _gelu_backward)


def _gelu_and_derivative(x: Array, bias: Array) -> tuple[Array, Array]:
    x = x.astype(jnp.float32) + bias
    tanh = jnp.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x**3))
    inner = _SQRT_2_OVER_PI * (1 + 3 * _CUBIC * jnp.square(x))
    half = 0.5 * (1 + tanh)
    return x * half, half + 0.5 * x * (1 - jnp.square(tanh)) * inner
