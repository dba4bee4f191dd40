"""Runs a schedule over stage functions, inside one ``shard_map`` that is manual over all axes.

All shapes here are those of one device. A device is one stage; ``lax.scan`` walks the ticks, and
in each the device does the forward and the backward unit that the schedule gives its stage, or
nothing in a bubble (``units``).

Devices must issue their collectives in the same order, or they can wait for each other for ever.
Independent ones (the two hops, sums inside the stages) have none, so ``in_order`` gives them one.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from minigpt.parallel.axes import Axes
from minigpt.parallel.order import in_order, once
from minigpt.parallel.schedule import Schedule, Unit
from minigpt.parallel.units import Layer, Row, Tree, Units, add


@dataclass(frozen=True)
class Stages:
    """The model as the pipeline sees it; ``m`` is the number of a microbatch.

    Attributes:
        embed: ``(rest, m) -> x``, what enters the first layer. All devices take part.
        layer: ``(layer's parameters, x, its number in the model, m) -> y``, any of them.
        head: ``(rest, y, m) -> loss sum``, from what leaves the last layer. All take part.
        axes: the mesh's axes.
    """

    embed: Callable[[Tree, jax.Array], jax.Array]
    layer: Layer
    head: Callable[[Tree, jax.Array, jax.Array], jax.Array]
    axes: Axes


class _Carry(NamedTuple):
    """What a device keeps from tick to tick."""

    received: jax.Array  # activations from the stage before
    received_gradient: jax.Array  # gradient from the stage behind
    kept: list[jax.Array]  # [slots, layers, ...] residuals of units yet to come back
    head_gradients: jax.Array  # [places, ...] of microbatches through the head, not yet back
    layer_gradients: Tree
    rest_gradients: Tree
    loss: jax.Array


def accumulated_gradients(
    stages: Stages, schedule: Schedule, layers: Tree, rest: Tree
) -> tuple[jax.Array, tuple[Tree, Tree]]:
    """As ``pipelined_gradients``, where one stage holds all layers."""
    axes = stages.axes

    def loss_of(layers: Tree, rest: Tree, m: jax.Array) -> jax.Array:
        unit = Row(valid=jnp.bool(True), chunk=jnp.int32(0), microbatch=m, slot=jnp.int32(0))
        x = stages.embed(rest, m)
        y = Units(stages.layer, layers, schedule, axes).through(x, unit)
        return stages.head(rest, y, m)

    def add_microbatch(carry: tuple[Tree, Tree], m: jax.Array) -> tuple[tuple[Tree, Tree], None]:
        loss, gradients = carry
        more, found = jax.value_and_grad(loss_of, (0, 1))(layers, rest, m)
        return (loss + more, add(gradients, found)), None

    zeros = jax.tree.map(lambda leaf: axes.like(jnp.zeros(leaf.shape), leaf), (layers, rest))
    start = (axes.vary(jnp.zeros(()), "data"), zeros)
    return lax.scan(add_microbatch, start, jnp.arange(schedule.num_microbatches))[0]


def pipelined_gradients(
    stages: Stages, schedule: Schedule, layers: Tree, rest: Tree, zero: jax.Array, one: jax.Array
) -> tuple[jax.Array, tuple[Tree, Tree]]:
    """Loss sum and gradients of all microbatches.

    Args:
        stages: the model.
        schedule: who does what when.
        layers: this stage's layer parameters, ``[chunks, layers, ...]``.
        rest: all other parameters.
        zero: zeros of what travels between stages, marked as differing where it does.
        one: 1, in a way that the compiler cannot know.

    Returns:
        The loss sum, and the gradients of ``layers`` and ``rest``, float32; those of ``rest`` that
        are not split are complete on every device.
    """
    run = _Run(stages, schedule, layers, rest)
    carry = run.start(zero)
    for first, last in run.phases():
        forward, backward = run.table("forward", first, last), run.table("backward", first, last)
        if last - first > 1:
            carry, _ = lax.scan(run.tick, carry, (forward, backward))
        else:
            carry = once(run.tick, carry, (forward, backward), one)
    return carry.loss, (carry.layer_gradients, carry.rest_gradients)


def pipelined_loss(
    stages: Stages, schedule: Schedule, layers: Tree, rest: Tree, zero: jax.Array
) -> jax.Array:
    """Loss sum of all microbatches: the forward ticks of the schedule alone."""
    run, axes = _Run(stages, schedule, layers, rest), stages.axes

    def tick(carry: tuple[jax.Array, jax.Array], row: Row) -> tuple[Any, None]:
        received, loss = carry
        mine = row.at(run.stage)
        done, last = run.through_the_head(row)

        def through(x: jax.Array) -> tuple[jax.Array]:
            return (run.units.through(x, mine),)

        (y,) = _if(mine.valid, "forward", through, run.input(received, row))

        def head(loss: jax.Array) -> tuple[jax.Array]:
            return (loss + stages.head(rest, run.from_last(y), last.microbatch),)

        (loss,) = _if(done, "head", head, loss)
        y, loss = in_order(y, loss)
        return (run.hop(y, run.ring), loss), None

    loss = axes.vary(jnp.zeros(()), "data")
    table = run.table("forward", 0, schedule.num_forward_ticks)
    return lax.scan(tick, (axes.vary(zero, "pipe"), loss), table)[0][1]


def conditions(num_microbatches: int, interleave: int) -> dict[str, int]:
    """Scope of each condition in the compiled program, and in how many ticks it holds."""
    units = num_microbatches * interleave
    return {"forward": units, "backward": units} | dict.fromkeys(
        ("embed", "head", "embed_backward"), num_microbatches
    )


class _Run:
    """One schedule over one set of parameters, on this device."""

    def __init__(self, stages: Stages, schedule: Schedule, layers: Tree, rest: Tree) -> None:
        self.stages, self.schedule = stages, schedule
        self.layers, self.rest = layers, rest
        self.units = Units(stages.layer, layers, schedule, stages.axes)
        self.axes = stages.axes
        self.stage = self.axes.index("pipe")
        self.last = schedule.num_stages - 1
        self.ring = [(i, (i + 1) % schedule.num_stages) for i in range(schedule.num_stages)]
        self.back = [(there, here) for here, there in self.ring]

    def phases(self) -> list[tuple[int, int]]:
        """Ranges of ticks in which the same directions occur: warm-up, steady, drain."""
        schedule = self.schedule
        marks = {0, schedule.first_backward_tick, schedule.num_forward_ticks, schedule.num_ticks}
        edges = sorted(marks)
        return list(itertools.pairwise(edges))

    def table(self, direction: str, first: int, last: int) -> Row | None:
        """Ticks ``first`` to ``last - 1`` as arrays ``[ticks, stages]``; None for bubbles only."""
        works = self.schedule.ticks[first:last]
        units: list[list[Unit | None]] = [
            [getattr(work, direction) for work in row] for row in works
        ]
        if not any(unit for row in units for unit in row):
            return None

        def column(entry: Callable[[Unit], int]) -> jax.Array:
            return jnp.array([[entry(u) if u else 0 for u in row] for row in units], jnp.int32)

        return Row(
            valid=jnp.array([[u is not None for u in row] for row in units]),
            chunk=column(lambda u: u.chunk),
            microbatch=column(lambda u: u.microbatch),
            slot=column(lambda u: u.slot),
        )

    def start(self, zero: jax.Array) -> _Carry:
        of_stage = self.axes.vary(zero, "pipe")
        waiting = self.schedule.num_microbatches if self.schedule.kind == "gpipe" else 1

        def gradient(leaf: jax.Array) -> jax.Array:
            return self.axes.like(jnp.zeros(leaf.shape, jnp.float32), leaf)

        return _Carry(
            received=of_stage,
            received_gradient=of_stage,
            kept=self.units.slots(of_stage),
            head_gradients=jnp.broadcast_to(zero, (waiting, *zero.shape)),
            layer_gradients=jax.tree.map(gradient, self.layers),
            rest_gradients=jax.tree.map(gradient, self.rest),
            loss=self.axes.vary(jnp.zeros(()), "data"),
        )

    def tick(self, carry: _Carry, work: tuple[Row | None, Row | None]) -> tuple[_Carry, None]:
        """The forward unit, the head, the backward unit, then one hop each way."""
        forward, backward = work
        y = carry.received
        if forward is not None:
            y, kept = self.forward(carry, forward)
            carry = self.head(carry._replace(kept=kept), forward, y)
        d_x = carry.received_gradient
        if backward is not None:
            carry, d_x = self.backward(carry, backward)
        y, d_x, rest = in_order(y, d_x, carry.rest_gradients)
        carry = carry._replace(rest_gradients=rest)
        if forward is not None:
            y = self.hop(y, self.ring)
        if backward is not None:
            y, d_x = in_order(y, d_x)
            d_x = self.hop(d_x, self.back)
        return carry._replace(received=y, received_gradient=d_x), None

    def hop(self, x: jax.Array, ring: list[tuple[int, int]]) -> jax.Array:
        return lax.ppermute(x, "pipe", ring) if len(ring) > 1 else x

    def input(self, received: jax.Array, row: Row) -> jax.Array:
        """What enters this stage's forward unit."""
        mine, first = row.at(self.stage), row.at(0)

        def embed(_: jax.Array) -> tuple[jax.Array]:
            return (self.axes.vary(self.stages.embed(self.rest, first.microbatch), "pipe"),)

        (embedded,) = _if(first.valid & (first.chunk == 0), "embed", embed, received)
        return jnp.where((self.stage == 0) & (mine.chunk == 0), embedded, received)

    def forward(self, carry: _Carry, row: Row) -> tuple[jax.Array, list[jax.Array]]:
        """Output of this stage's forward unit, and all that is kept with its residuals."""
        unit = row.at(self.stage)
        x = self.input(carry.received, row)
        run = partial(self.units.forward, unit=unit)
        return _if(unit.valid, "forward", run, x, carry.kept)

    def through_the_head(self, row: Row) -> tuple[jax.Array, Row]:
        """Whether a microbatch leaves the last layer in this tick, and the last stage's unit."""
        unit = row.at(self.last)
        return unit.valid & (unit.chunk == self.schedule.interleave - 1), unit

    def from_last(self, y: jax.Array) -> jax.Array:
        """The last stage's array, on every stage."""
        return self.axes.sum(jnp.where(self.stage == self.last, y, 0), "pipe")

    def head(self, carry: _Carry, row: Row, y: jax.Array) -> _Carry:
        """Loss and gradients of the microbatch that the last stage has just finished."""
        done, unit = self.through_the_head(row)

        def run(
            head_gradients: jax.Array, rest_gradients: Tree, total: jax.Array
        ) -> tuple[Tree, ...]:
            loss, (d_rest, d_y) = jax.value_and_grad(self.stages.head, (0, 1))(
                self.rest, self.from_last(y), unit.microbatch
            )
            place = unit.microbatch % head_gradients.shape[0]
            return head_gradients.at[place].set(d_y), add(rest_gradients, d_rest), total + loss

        totals = _if(done, "head", run, carry.head_gradients, carry.rest_gradients, carry.loss)
        return carry._replace(head_gradients=totals[0], rest_gradients=totals[1], loss=totals[2])

    def backward(self, carry: _Carry, row: Row) -> tuple[_Carry, jax.Array]:
        """This stage's backward unit, and the embedding's if one arrives at the first layer."""
        mine, first = row.at(self.stage), row.at(0)
        last_chunk = self.schedule.interleave - 1
        d_head = carry.head_gradients[mine.microbatch % carry.head_gradients.shape[0]]
        is_end = (self.stage == self.last) & (mine.chunk == last_chunk)
        d_y = jnp.where(is_end, d_head, carry.received_gradient)

        run = partial(self.units.backward, kept=carry.kept, unit=mine)
        d_x, layer_gradients = _if(mine.valid, "backward", run, d_y, carry.layer_gradients)

        def embedding(gradients: Tree) -> tuple[Tree]:
            d_first = self.axes.sum(jnp.where(self.stage == 0, d_x, 0), "pipe")
            _, pull = jax.vjp(lambda rest: self.stages.embed(rest, first.microbatch), self.rest)
            return (add(gradients, pull(d_first)[0]),)

        arrives = first.valid & (first.chunk == 0)
        (rest_gradients,) = _if(arrives, "embed_backward", embedding, carry.rest_gradients)
        carry = carry._replace(layer_gradients=layer_gradients, rest_gradients=rest_gradients)
        return carry, d_x


def _if(
    condition: jax.Array, scope: str, run: Callable[..., tuple[Tree, ...]], *operands: Tree
) -> tuple[Any, ...]:
    """``run(*operands)``, or where the condition does not hold the operands as they are.

    ``scope`` is its name in the compiled program, one of ``conditions``.
    """
    with jax.named_scope(scope):
        return lax.cond(condition, run, lambda *operands: operands, *operands)
