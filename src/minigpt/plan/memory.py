"""Memory of one device in a training step, by formula.

Parameters, moments and gradients are counted exactly. What the backward pass keeps is counted from
the model: which arrays the derivative of each operation needs. The working memory of one layer and
of the loss, the arrays that live while the peak is reached, was read from programs compiled for a
CPU; ``minigpt plan --check`` and the tests compare the whole with XLA's own analysis.

Notation: a microbatch of ``R`` rows of ``T`` positions on one device, ``E`` wide, ``H`` hidden; a
*unit* is ``R T E`` numbers.
"""

from dataclasses import dataclass, fields

from minigpt.config import Config
from minigpt.model.sizes import BLOCK, chunk_size
from minigpt.parallel.schedule import Schedule
from minigpt.plan.counts import held_parameters

_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device at the peak of a step."""

    parameters: int
    gradients: int
    """float32, with those of the microbatch or chunk that is being added."""
    optimizer: int
    """Both moments."""
    activations: int
    """What layers keep for the backward passes to come, with weights in the compute dtype."""
    logits: int
    """Of the chunk of the vocabulary that the loss works on."""
    buffers: int
    """What the layer that is computed needs beyond the logits, what travels between stages,
    and rows."""

    @property
    def total(self) -> int:
        """All together."""
        return sum(getattr(self, field.name) for field in fields(self))


def step_memory(config: Config, shape: tuple[int, int, int], padded_vocab: int) -> Memory:
    """Memory of a configuration on a mesh.

    Args:
        config: the run.
        shape: (pipe, data, model).
        padded_vocab: rows of the embedding.
    """
    pipe, data, tensor = shape
    parallel, batch = config.parallel, config.train.global_batch_size
    held = held_parameters(config, shape, padded_vocab)
    rows = batch // data
    micro = _Microbatch(
        config, rows // parallel.microbatches, tensor, padded_vocab // (pipe * tensor)
    )
    chunk_layers = config.model.num_layers // (pipe * parallel.interleave)
    layer, logits = micro.layer, micro.logits
    kept, units = chunk_layers * micro.kept, 1
    if parallel.remat == "layer":
        kept = chunk_layers * micro.input
        # The arrays of one layer come and go with it.
        layer = max(micro.kept + micro.mlp, micro.kept_in_attention + micro.attention)
    casts = 0
    if micro.item < _FLOAT32:
        casts = micro.item * (held.matrices + held.vocabulary)
    waiting = 0
    gradients = held.total * (1 if parallel.microbatches == 1 else 2)
    if pipe > 1:
        schedule = Schedule(parallel.schedule, pipe, parallel.interleave, parallel.microbatches)
        heads = parallel.microbatches if parallel.schedule == "gpipe" else 1
        waiting = (heads + 2) * micro.input
        gradients = held.total + held.layers * pipe // config.model.num_layers
        units = schedule.num_slots
    if chunk_layers == 1 and (pipe > 1 or parallel.remat == "layer"):  # no loop over layers
        layer -= 5 * micro.input
    return Memory(
        parameters=_FLOAT32 * held.total,
        gradients=_FLOAT32 * gradients,
        optimizer=_FLOAT32 * 2 * held.moments,
        activations=units * kept + casts,
        logits=logits,
        buffers=max(0, layer - logits) + waiting + _FLOAT32 * rows * (config.model.seq_length + 2),
    )


class _Microbatch:
    """Bytes of what one device makes of one microbatch."""

    def __init__(self, config: Config, rows: int, tensor: int, held_vocab: int) -> None:
        model, gpu = config.model, config.cluster.platform == "cuda"
        self.item = 2 if config.train.compute_dtype == "bfloat16" else _FLOAT32
        unit = rows * model.seq_length * model.embed_dim
        own = unit // tensor if config.parallel.sequence else unit
        split, wide = unit // tensor, unit * model.hidden_dim // model.embed_dim // tensor
        scores = rows * model.num_heads // tensor * model.seq_length
        item, dropout = self.item, model.dropout > 0
        self.input = _FLOAT32 * own
        # Attention: normalised input, its scaled copy, queries, keys, values, output.
        self.kept_by_attention = (_FLOAT32 + item) * own + 4 * item * split + _FLOAT32 * scores
        if dropout:  # which attention weights are not dropped, and which outputs
            self.kept_by_attention += scores * model.seq_length + own
        self.kept = (
            self.kept_by_attention + (_FLOAT32 + item) * own + 2 * item * wide + dropout * own
        )
        self.kept_in_attention = self.kept_by_attention + 2 * item * own
        self.mlp = round((3.5 if item == _FLOAT32 else 3) * _FLOAT32 * own + 4 * item * wide)
        keys = 2.1 * keys_per_query(model.seq_length)  # blocks are computed side by side
        if dropout:
            keys = 5.1 * model.seq_length  # with random bits
        elif gpu and item < _FLOAT32:
            keys = 0.0  # cuDNN's attention never holds scores
        of_split = (20 if item == _FLOAT32 else 12) * _FLOAT32 * split
        of_own = (3 if item == _FLOAT32 else 2) * _FLOAT32 * own
        # Random bits for the outputs, which every peer draws for all positions.
        bits = 3.6 * _FLOAT32 * (unit - split) * dropout
        self.attention = round(of_split + of_own + _FLOAT32 * scores * keys + bits)
        self.layer = max(self.mlp, self.attention)
        chunk = chunk_size(held_vocab)
        self.logits = 3 * _FLOAT32 * rows * model.seq_length * chunk + 4 * item * own


def keys_per_query(seq: int) -> float:
    """Keys that the blocks of ``model.attention`` look at, a mean over the queries."""
    pairs = sum(min(BLOCK, seq - at) * min(at + BLOCK, seq) for at in range(0, seq, BLOCK))
    return pairs / seq
