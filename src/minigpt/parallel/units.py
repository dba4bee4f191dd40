"""Units of a schedule on one stage: a microbatch through a chunk of its layers, and back.

Going forward each layer leaves its residuals, what its derivative needs besides parameters, in the
unit's slot; going backward they are read from there, so that nothing is computed twice. The layers
of a chunk are walked here and not by ``jax.vjp`` of all of them, which would gather the residuals
of a unit before they could be copied into its slot, and its gradients before they could be added.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from minigpt.parallel.axes import Axes
from minigpt.parallel.order import in_order
from minigpt.parallel.schedule import Schedule

Tree = Any

Layer = Callable[[Tree, jax.Array, jax.Array, jax.Array], jax.Array]
"""``(layer's parameters, x, its number in the model, number of the microbatch) -> y``."""


class Row(NamedTuple):
    """A tick of the schedule as arrays: of one stage after ``at``, of all before."""

    valid: jax.Array
    chunk: jax.Array
    microbatch: jax.Array
    slot: jax.Array

    def at(self, stage: jax.Array | int) -> "Row":
        """The entries of a stage."""
        return Row(*(entry[stage] for entry in self))


class Units:
    """The units of one stage; ``unit`` is a row of the schedule at this stage."""

    def __init__(self, layer: Layer, layers: Tree, schedule: Schedule, axes: Axes) -> None:
        """Of a stage's layer parameters, ``[chunks, layers, ...]``."""
        self._layer, self._layers = layer, layers
        self._axes, self._schedule = axes, schedule
        self._num_layers = jax.tree.leaves(layers)[0].shape[1]
        self._derivative: Any = None

    def through(self, x: jax.Array, unit: Row) -> jax.Array:
        """What leaves the unit's layers; nothing is kept."""

        def layer(x: jax.Array, numbered: tuple[Tree, jax.Array]) -> tuple[jax.Array, None]:
            params, number = numbered
            return self._layer(params, x, number, unit.microbatch), None

        numbers = self._number(unit, jnp.arange(self._num_layers))
        return lax.scan(layer, x, (at(self._layers, unit.chunk), numbers))[0]

    def slots(self, x: jax.Array) -> list[jax.Array]:
        """Zeros ``[slots, layers, ...]`` for all residuals, where ``x`` enters the layers."""
        unit = Row(*[self._axes.vary(jnp.int32(0), "pipe")] * 4)
        derivative = jax.eval_shape(lambda: self._with_derivative(x, unit, 0)[1])
        residuals, self._derivative = jax.tree.flatten(derivative)
        dims = (self._schedule.num_slots, self._num_layers)
        return [
            self._axes.like(jnp.zeros((*dims, *residual.shape), residual.dtype), residual)
            for residual in residuals
        ]

    def forward(
        self, x: jax.Array, kept: list[jax.Array], unit: Row
    ) -> tuple[jax.Array, list[jax.Array]]:
        """What leaves the unit's layers, and the slots with its residuals."""

        def layer(
            carry: tuple[jax.Array, list[jax.Array]], index: jax.Array
        ) -> tuple[tuple[jax.Array, list[jax.Array]], None]:
            x, kept = carry
            y, derivative = self._with_derivative(x, unit, index)
            residuals = jax.tree.leaves(derivative)
            kept = jax.tree.map(lambda all, one: _put(all, one, unit.slot, index), kept, residuals)
            return (y, kept), None

        return lax.scan(layer, (x, kept), jnp.arange(self._num_layers))[0]

    def backward(
        self, d_y: jax.Array, gradients: Tree, kept: list[jax.Array], unit: Row
    ) -> tuple[jax.Array, Tree]:
        """The gradient of what entered, and ``gradients`` with the layers' own added."""
        slot, d_y = in_order(unit.slot, d_y)

        def layer(
            carry: tuple[jax.Array, Tree], index: jax.Array
        ) -> tuple[tuple[jax.Array, Tree], None]:
            d_y, gradients = carry
            place = (unit.chunk, index)
            pull: Any = jax.tree.unflatten(self._derivative, at(kept, slot, index))
            pull.args_res = [at(self._layers, *place), *pull.args_res[1:]]
            d_params, d_x = pull(d_y)
            total = add(at(gradients, *place), d_params)
            gradients = jax.tree.map(lambda all, one: _put(all, one, *place), gradients, total)
            return (d_x, gradients), None

        indices = jnp.arange(self._num_layers)
        return lax.scan(layer, (d_y, gradients), indices, reverse=True)[0]

    def _with_derivative(
        self, x: jax.Array, unit: Row, index: jax.Array | int
    ) -> tuple[jax.Array, Any]:
        """Output of one of the unit's layers, and its derivative without the parameters."""
        number = self._number(unit, index)

        def layer(params: Tree, x: jax.Array) -> jax.Array:
            return self._layer(params, x, number, unit.microbatch)

        params = at(self._layers, unit.chunk, index)
        return jax.vjp(layer, params, x, saveable_args=(False, True))

    def _number(self, unit: Row, index: jax.Array | int) -> jax.Array:
        """In the model, of one of the unit's layers."""
        chunk = unit.chunk * self._schedule.num_stages + self._axes.index("pipe")
        return chunk * self._num_layers + index


def at(tree: Tree, *indices: jax.Array | int) -> Tree:
    """The entries of all leaves at indices of their first dims."""

    def entry(leaf: jax.Array) -> jax.Array:
        for index in indices:
            leaf = lax.dynamic_index_in_dim(leaf, index, keepdims=False)
        return leaf

    return jax.tree.map(entry, tree)


def add(totals: Tree, more: Tree) -> Tree:
    """Sums, in the dtypes of ``totals``."""
    return jax.tree.map(lambda total, d: total + d.astype(total.dtype), totals, more)


def _put(array: jax.Array, entry: jax.Array, *indices: jax.Array) -> jax.Array:
    """The array with an entry replaced, at indices of its first dims."""
    places = [*indices, *[0] * entry.ndim]
    return lax.dynamic_update_slice(array, jnp.expand_dims(entry, range(len(indices))), places)
