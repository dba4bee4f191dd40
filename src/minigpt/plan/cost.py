"""Time of a training step on a cluster, by formula: products, memory traffic, exchanges, bubbles.

Nothing overlaps: MiniGPT's program issues its exchanges in one order, each when its operands are
there, and devices add up their gradients once, when all are there. What a device computes is
products of matrices at the cluster's matrix rate, and passes over activations, logits, gradients of
microbatches and optimizer state at the bandwidth of its memory.
"""

import math
from dataclasses import dataclass, fields
from functools import lru_cache

from minigpt.config import Config
from minigpt.model.sizes import MAX_CHUNK
from minigpt.parallel.schedule import Schedule
from minigpt.plan.clusters import Cluster
from minigpt.plan.counts import held_parameters
from minigpt.plan.hlo import AXES, Collective
from minigpt.plan.memory import keys_per_query
from minigpt.plan.traffic import step_traffic

Shape = tuple[int, int, int]

_FLOAT32 = 4
# Passes over memory, in bytes for each number of the width, counted in the model: two norms, two
# residual sums, biases, casts; a GELU; the softmax of scores that are held; the loss's logits.
_OWN_BYTES, _SPLIT_BYTES, _WIDE_BYTES, _SCORE_BYTES, _LOGIT_BYTES = 56, 8, 12, 24, 36
_OPTIMIZER_BYTES = 56  # of each parameter: norm, clip, both moments, decay, update
_SUM_BYTES = 12  # of each gradient of a microbatch: it and the sum read, the sum written
_LAYER_OPERATIONS, _CHUNK_OPERATIONS = 16, 12


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one step."""

    compute: float
    """Of the model, with what is computed again going backward, and sums of gradients."""
    optimizer: float
    bubble: float
    """In which stages wait for others, who compute and exchange."""
    tensor: float
    """Exchanges of tensor-parallel peers, and of the owners of the vocabulary."""
    pipe: float
    """Exchanges between stages."""
    data: float
    """Exchanges between data-parallel groups."""

    @property
    def total(self) -> float:
        """Of the whole step."""
        return sum(getattr(self, field.name) for field in fields(self))


def step_time(config: Config, shape: Shape, padded_vocab: int, cluster: Cluster) -> StepTime:
    """Time of a configuration's step on a mesh over all devices of a cluster.

    Args:
        config: the run.
        shape: (pipe, data, model).
        padded_vocab: rows of the embedding.
        cluster: the hardware.

    Raises:
        ConfigError: the cluster has no rate of the compute dtype.
    """
    parallel, (pipe, _, _) = config.parallel, shape
    work = _Work(config, shape, padded_vocab, cluster)
    chunk_layers = config.model.num_layers // (pipe * parallel.interleave)
    forward, backward = chunk_layers * work.layer, chunk_layers * (2 * work.layer + work.layer_sum)
    if parallel.remat == "layer":
        backward += forward
    schedule = Schedule(parallel.schedule, pipe, parallel.interleave, parallel.microbatches)
    ticks = schedule.num_forward_ticks
    back_ticks = schedule.num_ticks - schedule.first_backward_tick
    units = parallel.microbatches * parallel.interleave
    layers = units * (forward + backward)
    waited = (ticks - units) * forward + (back_ticks - units) * backward
    exchanges = exchange_seconds(config, shape, padded_vocab, cluster)
    tensor = exchanges["model"]
    return StepTime(
        compute=layers + parallel.microbatches * work.loss,
        optimizer=work.optimizer,
        bubble=waited * (1 + tensor / layers),
        tensor=tensor,
        pipe=exchanges["pipe"],
        data=exchanges["data"],
    )


class _Work:
    """Seconds that one device needs for parts of a step."""

    def __init__(self, config: Config, shape: Shape, padded_vocab: int, cluster: Cluster) -> None:
        model, (pipe, data, tensor) = config.model, shape
        rate = cluster.matrix_rate(config.train.compute_dtype)
        memory = cluster.memory_bandwidth
        embed, hidden, seq = model.embed_dim, model.hidden_dim, model.seq_length
        tokens = config.train.global_batch_size // (data * config.parallel.microbatches) * seq
        half = config.train.compute_dtype == "bfloat16"
        holds_scores = model.dropout > 0 or cluster.platform != "cuda" or not half
        keys = keys_per_query(seq)
        own = embed // tensor if config.parallel.sequence else embed
        products = 2 * (4 * embed * embed + 2 * embed * hidden) + 4 * keys * embed
        passes = _OWN_BYTES * own + (_SPLIT_BYTES * embed + _WIDE_BYTES * hidden) / tensor
        if holds_scores:
            masks = seq * (model.dropout > 0)
            passes += _SCORE_BYTES * (keys + masks) * model.num_heads / tensor
        started = cluster.operation_seconds
        self.layer = tokens * (products / tensor / rate + passes / memory)
        self.layer += _LAYER_OPERATIONS * started
        logits = padded_vocab // (pipe * tensor)
        # Logits are computed going forward, again going backward, and both gradients from them.
        self.loss = tokens * logits * (4 * 2 * embed / rate + _LOGIT_BYTES / memory)
        self.loss += math.ceil(logits / MAX_CHUNK) * _CHUNK_OPERATIONS * started
        held = held_parameters(config, shape, padded_vocab)
        added = _SUM_BYTES / memory if max(pipe, config.parallel.microbatches) > 1 else 0
        self.layer_sum = added * held.layers * pipe / model.num_layers
        self.loss += added * 2 * (held.vocabulary + held.rest)  # of the head, and of the lookup
        moved = _OPTIMIZER_BYTES // 2 * (held.total + held.moments)
        self.optimizer = moved / memory


def exchange_seconds(
    config: Config, shape: Shape, padded_vocab: int, cluster: Cluster
) -> dict[str, float]:
    """Seconds of a step's exchanges by axis; the vocabulary's owners count as ``model``."""
    seconds = dict.fromkeys(AXES, 0.0)
    for collective, times in step_traffic(config, shape, padded_vocab).items():
        axis = "model" if "model" in collective.axes else collective.axes[0]
        seconds[axis] += times * collective_seconds(collective, shape, cluster)
    return seconds


def collective_seconds(collective: Collective, shape: Shape, cluster: Cluster) -> float:
    """Time of an exchange that all groups of its axes do at once.

    Rings (Patarasu and Yuan 2009) for what is bound by bandwidth, trees for what is bound by
    latency. A ring that leaves a node and comes back loads the node's network once in each
    direction; rings of several groups share it.
    """
    size = math.prod(shape[AXES.index(axis)] for axis in collective.axes)
    sent, hops = _sent_bytes(collective, size), _hops(collective, size)
    crossing = rings_across_nodes(collective, shape, cluster.devices_per_node)
    link = cluster.between_nodes if crossing else cluster.inside_node
    assert link is not None, "a cluster has what its devices need"
    seconds = max(1, crossing) * sent / link.bandwidth
    if crossing and cluster.inside_node is not None:
        seconds = max(seconds, sent / cluster.inside_node.bandwidth)
    return seconds + hops * link.latency


def _sent_bytes(collective: Collective, size: int) -> float:
    """Bytes that each device of a ring sends; ``num_bytes`` are those of the result."""
    factors = {
        "all-reduce": 2 * (size - 1) / size,
        "all-gather": (size - 1) / size,
        "reduce-scatter": size - 1,
        "collective-permute": 1,
    }
    return factors[collective.kind] * collective.num_bytes


def _hops(collective: Collective, size: int) -> int:
    depth = math.ceil(math.log2(size))
    return {"all-reduce": 2 * depth, "collective-permute": 1}.get(collective.kind, depth)


def rings_across_nodes(collective: Collective, shape: Shape, devices_per_node: int) -> int:
    """Most rings that leave one node at a place; devices fill nodes in the order of the mesh."""
    return _rings_across_nodes(collective.axes, shape, devices_per_node)


@lru_cache(maxsize=4096)
def _rings_across_nodes(used: tuple[str, ...], shape: Shape, devices_per_node: int) -> int:
    strides = {"pipe": shape[1] * shape[2], "data": shape[2], "model": 1}
    axes = [axis for axis in AXES if axis in used]
    if math.prod(shape) <= devices_per_node:
        return 0
    leaving: dict[int, int] = {}
    for first in range(math.prod(shape)):
        coordinates = {axis: first // strides[axis] % shape[AXES.index(axis)] for axis in axes}
        nxt = first + _next(coordinates, axes, shape, strides)
        if nxt // devices_per_node != first // devices_per_node:
            node = first // devices_per_node
            leaving[node] = leaving.get(node, 0) + 1
    return max(leaving.values(), default=0)


def _next(
    coordinates: dict[str, int], axes: list[str], shape: Shape, strides: dict[str, int]
) -> int:
    """How far the next device of a ring is, counting up the innermost axis first."""
    step = 0
    for axis in reversed(axes):
        size = shape[AXES.index(axis)]
        if coordinates[axis] + 1 < size:
            return step + strides[axis]
        step -= coordinates[axis] * strides[axis]
    return step
