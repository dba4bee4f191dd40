"""Loss and gradients of a global batch on any mesh: one ``shard_map``, manual over all axes.

Here the model meets the mesh. Tensor-parallel peers add up partial products, owners of vocabulary
rows exchange normalisers, stages pass activations on, and data-parallel groups add their gradients
once, at the end. On one device the same program has nothing to exchange.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P

from minigpt.config import Config
from minigpt.data.batches import Batch
from minigpt.model.gpt import GPT, GPTSpec, cast_kernels, run_layer
from minigpt.model.loss import target_weights
from minigpt.model.peers import ALONE, Peers
from minigpt.parallel.axes import Axes, varying
from minigpt.parallel.mesh import AXES, VOCAB_AXES
from minigpt.parallel.order import in_order
from minigpt.parallel.pipeline import (
    Stages,
    accumulated_gradients,
    pipelined_gradients,
    pipelined_loss,
)
from minigpt.parallel.schedule import Schedule
from minigpt.parallel.sequence import entering_product, leaving_product
from minigpt.parallel.sharding import BATCH, gradient_specs, param_specs
from minigpt.train.state import Params, StateLayout, init_params


def peers_on(axes: Axes) -> Peers:
    """The exchanges of the model's slices over a mesh's axes."""
    return Peers(
        leave=lambda equation, x, kernel: axes.sum(ALONE.leave(equation, x, kernel), "model"),
        first_head=lambda num_held: axes.index("model") * num_held,
        sum_hidden=lambda x: axes.sum(x, *VOCAB_AXES),
        sum_vocab=lambda x: axes.sum(x, *VOCAB_AXES),
        max_vocab=lambda x: axes.max(x, *VOCAB_AXES),
        first_vocab=lambda num_held: axes.index(*VOCAB_AXES) * num_held,
        differ=axes.differ,
    )


def with_sequence_divided(peers: Peers, axes: Axes, num_peers: int, *, remat: bool) -> Peers:
    """The same exchanges where each tensor-parallel peer holds its positions between products."""
    return dataclasses.replace(
        peers,
        enter=entering_product(axes, keep_gathered=remat),
        leave=leaving_product(axes),
        own=lambda x: axes.own(x, "model", dim=1),
        gather=lambda x: axes.gather(x, "model", dim=1),
        sequence_parts=num_peers,
        # Scattered first, so that stages add up no more than the positions held.
        sum_hidden=lambda x: axes.sum(axes.sum_scatter(x, "model", dim=1), "pipe"),
    )


class Gradients(NamedTuple):
    """Of one batch.

    Attributes:
        mean: float32 gradients of the mean loss, as the moments lie.
        loss: mean over the valid targets.
        num_tokens: valid targets.
        norm: of all of ``mean`` together.
    """

    mean: Params
    loss: jax.Array
    num_tokens: jax.Array
    norm: jax.Array


class ParallelModel:
    """A model on a mesh: what the training and the evaluation step are made of."""

    def __init__(self, config: Config, spec: GPTSpec, layout: StateLayout) -> None:
        """Of a configuration whose mesh is ``layout.mesh``."""
        self._axes = Axes.of(layout.mesh)
        self._token_axes, peers = ("data",), peers_on(self._axes)
        if config.parallel.sequence:
            self._token_axes = ("data", "model")
            num_peers = layout.mesh.shape["model"]
            peers = with_sequence_divided(peers, self._axes, num_peers, remat=spec.remat)
        self._spec = dataclasses.replace(spec, peers=peers)
        whole = nnx.eval_shape(lambda: GPT(self._spec, nnx.Rngs(0)))
        self._graph, self._block_graph = nnx.graphdef(whole), nnx.graphdef(whole.blocks)
        shapes = jax.eval_shape(lambda: layout.to_chunks(init_params(spec, 0)))
        self._specs = jax.tree.map(self._axes.spec, param_specs(shapes))
        zero = config.parallel.zero == 1
        specs = gradient_specs(shapes, layout.mesh, zero=zero)
        self._gradient_specs = jax.tree.map(self._axes.spec, specs)
        self._mesh = layout.mesh
        self._root_key = jax.random.key(config.train.seed)
        self._schedule = Schedule(
            config.parallel.schedule,
            layout.mesh.shape["pipe"],
            config.parallel.interleave,
            config.parallel.microbatches,
        )

    def gradients(self, params: Params, batch: Batch, step: jax.Array) -> "Gradients":
        """float32 gradients of the mean loss over the whole batch.

        Gradients of the *summed* loss are added up over microbatches and groups; the division by
        the number of valid targets of the whole batch comes once, at the end, so that rows with
        more valid targets weigh more, however the batch is cut.
        """

        def local(params: Params, batch: Batch, step: jax.Array) -> Gradients:
            layers, rest = self._parts(params)
            rows = self._microbatches(batch, step)
            stages = self._stages(rows, layers)
            if self._schedule.num_stages == 1:
                loss, found = accumulated_gradients(stages, self._schedule, layers, rest)
            else:
                zero, one = self._residual_stream(rows), jnp.where(step >= 0, 1, 0)
                loss, found = pipelined_gradients(stages, self._schedule, layers, rest, zero, one)
            gradients = self._over_positions({"blocks": found[0], **found[1]}, params)
            loss, gradients, num_tokens = self._over_groups(loss, gradients, rows.weights.sum())
            return Gradients(gradients, loss, num_tokens, self._norm(gradients))

        everywhere: Any = P()
        specs = Gradients(self._gradient_specs, everywhere, everywhere, everywhere)
        summed, total, num_tokens, norm = self._on_mesh(local, P(), specs)(params, batch, step)
        mean = jax.tree.map(lambda gradient: gradient / num_tokens, summed)
        return Gradients(mean, total / num_tokens, num_tokens, norm / num_tokens)

    def loss_sum(
        self, params: Params, batch: Batch, num_counted: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Summed loss and number of valid targets, without dropout.

        Left out are targets within the first ``num_counted`` tokens of their row, if it is given.
        """

        def local(
            params: Params, batch: Batch, num_counted: jax.Array | None
        ) -> tuple[jax.Array, jax.Array]:
            layers, rest = self._parts(params)
            rows = self._microbatches(batch, None, num_counted)
            stages, zero = self._stages(rows, layers), self._residual_stream(rows)
            loss = pipelined_loss(stages, self._schedule, layers, rest, zero)
            return self._axes.sum((loss, rows.weights.sum()), "data")

        return self._on_mesh(local, BATCH, (P(), P()))(params, batch, num_counted)

    def _on_mesh(self, local: Callable[..., Any], last: P, out_specs: Any) -> Callable[..., Any]:  # noqa: ANN401
        """``local(params, batch, last)`` on every device, with its parts of the arrays."""
        in_specs = (self._specs, self._axes.spec(BATCH), self._axes.spec(last))
        return jax.shard_map(local, mesh=self._mesh, in_specs=in_specs, out_specs=out_specs)

    def _parts(self, params: Params) -> tuple[Params, Params]:
        """Parameters of the layers, and the rest, as a step uses them.

        Their gradients stay one device's over the axes that divide tokens: else jax would add them
        up wherever a parameter is used, in each layer, many times a step. Kernels are cast once,
        not for each microbatch, which would keep a copy of its own.
        """
        params = jax.tree.map(lambda leaf: self._axes.vary(leaf, *self._token_axes), params)
        rest = {name: value for name, value in params.items() if name != "blocks"}
        return cast_kernels(params["blocks"], self._spec.compute_dtype), rest

    def _over_positions(self, gradients: Params, params: Params) -> Params:
        """Gradients of what all peers hold, from those of each peer's positions."""
        if "model" not in self._token_axes:
            return gradients

        def complete(gradient: jax.Array, parameter: jax.Array) -> jax.Array:
            is_split = "model" in varying(parameter)
            return gradient if is_split else self._axes.sum(gradient, "model")

        # All of them before the sums over ``data``: collectives need an order.
        return lax.optimization_barrier(jax.tree.map(complete, gradients, params))

    def _over_groups(
        self, loss: jax.Array, gradients: Params, num_tokens: jax.Array
    ) -> tuple[jax.Array, Params, jax.Array]:
        """Sums over the data groups; of a gradient whose moments are divided, a group's part."""
        leaves, tree = jax.tree.flatten(gradients)
        dims = [_data_dim(spec) for spec in jax.tree.leaves(self._gradient_specs)]
        whole = [leaf for leaf, dim in zip(leaves, dims, strict=True) if dim is None]
        loss, whole, num_tokens = self._axes.sum((loss, whole, num_tokens), "data")
        parts: list[jax.Array] = []
        before = loss
        for leaf, dim in zip(leaves, dims, strict=True):
            if dim is not None:  # one after the other: collectives need an order
                ready, before = in_order(leaf, before)
                before = self._axes.sum_scatter(ready, "data", dim=dim)
            parts.append(whole.pop(0) if dim is None else before)
        return loss, jax.tree.unflatten(tree, parts), num_tokens

    @jax.named_scope("gradient_norm")
    def _norm(self, gradients: Params) -> jax.Array:
        """The norm of the whole gradient: one sum over all axes that divide some of it."""
        leaves = jax.tree.leaves(gradients)
        dividing = [_axes_of(spec) for spec in jax.tree.leaves(self._gradient_specs)]
        axes = [axis for axis in self._axes.active if any(axis in names for names in dividing)]
        squares = jnp.float32(0)
        for leaf, names in zip(leaves, dividing, strict=True):
            copies = math.prod(self._mesh.shape[axis] for axis in axes if axis not in names)
            squares += self._axes.vary(jnp.square(leaf).sum(), *axes) / copies
        return jnp.sqrt(self._axes.sum(squares, *axes))

    def _residual_stream(self, rows: "_Rows") -> jax.Array:
        """Zeros of what travels between stages."""
        num_rows, seq = rows.weights.shape[1:]
        model, parts = self._spec.model, self._spec.peers.sequence_parts
        zeros = jnp.zeros((num_rows, seq // parts, model.embed_dim), jnp.float32)
        return self._axes.vary(zeros, *self._token_axes)

    def _microbatches(
        self, batch: Batch, step: jax.Array | None, num_counted: jax.Array | None = None
    ) -> "_Rows":
        """This device's rows as microbatches; dropout keys of their global rows if training."""
        num_rows = batch.lengths.shape[0]
        keys = None
        if step is not None and self._spec.model.dropout > 0:
            step_key = jax.random.fold_in(self._root_key, step)
            rows = self._axes.index("data") * num_rows + jnp.arange(num_rows)
            keys = jax.vmap(lambda row: jax.random.fold_in(step_key, row))(rows)

        def cut(leaf: jax.Array) -> jax.Array:
            return leaf.reshape(self._schedule.num_microbatches, -1, *leaf.shape[1:])

        weights = target_weights(batch.lengths, batch.tokens.shape[1] - 1)
        if num_counted is not None:
            weights -= target_weights(num_counted, weights.shape[1])
        return _Rows(
            tokens=cut(batch.tokens),
            weights=cut(weights),
            keys=None if keys is None else cut(keys),
        )

    def _stages(self, rows: "_Rows", all_layers: Params) -> Stages:
        """The model's three parts for one device's microbatches.

        ``all_layers`` only completes the model for the parts that do not use them.
        """

        def model(rest: Params) -> GPT:
            return nnx.merge(self._graph, {**rest, "blocks": all_layers})

        def embed(rest: Params, m: jax.Array) -> jax.Array:
            return model(rest).first_hidden(rows.tokens[m][:, :-1], rows.keys_of(m))

        def layer(params: Params, x: jax.Array, number: jax.Array, m: jax.Array) -> jax.Array:
            keys, remat = rows.keys_of(m), self._spec.remat
            return run_layer(self._block_graph, params, x, keys, number, remat=remat)

        def head(rest: Params, y: jax.Array, m: jax.Array) -> jax.Array:
            whole = model(rest)
            hidden = whole.final_norm(y)
            return whole.head_loss_sum(hidden, rows.tokens[m][:, 1:], rows.weights[m])

        return Stages(embed, layer, head, self._axes)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """One device's microbatches: ``[microbatches, rows, ...]``."""

    tokens: jax.Array
    weights: jax.Array
    keys: jax.Array | None

    def keys_of(self, m: jax.Array) -> jax.Array | None:
        """Dropout keys of a microbatch's rows."""
        return None if self.keys is None else self.keys[m]


def _data_dim(spec: P) -> int | None:
    """The dimension that is divided over ``data``."""
    return next((dim for dim, axes in enumerate(spec) if axes in ("data", ("data",))), None)


def _axes_of(spec: P) -> set[str]:
    """The mesh axes of a partition."""
    return {axis for entry in spec if entry for axis in ((entry,) if entry in AXES else entry)}
