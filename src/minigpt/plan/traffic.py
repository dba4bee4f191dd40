"""What one device exchanges in one training step, by formula.

Written from the method, not from the program; tests compare the two. Notation: a microbatch of
``R`` rows of ``T`` positions on one device, ``E`` wide; an activation has ``R T E`` float32.
"""

from collections import Counter

from minigpt.config import Config
from minigpt.parallel.mesh import AXES, VOCAB_AXES
from minigpt.parallel.schedule import Schedule
from minigpt.plan.hlo import Collective

_FLOAT32 = 4


def gradient_traffic(
    config: Config, shape: tuple[int, int, int], padded_vocab: int
) -> Counter[Collective]:
    """Collectives of one step's loss and gradients, without those of the optimizer.

    Args:
        config: without ``parallel.sequence``, whose exchanges are all-gathers and reduce-scatters.
        shape: (pipe, data, model).
        padded_vocab: rows of the embedding.
    """
    parallel, model = config.parallel, config.model
    pipe, data, _ = shape
    schedule = Schedule(parallel.schedule, pipe, parallel.interleave, parallel.microbatches)
    positions = config.train.global_batch_size // (data * parallel.microbatches) * model.seq_length
    activation = _FLOAT32 * positions * model.embed_dim
    found: Counter[Collective] = Counter()

    def add(kind: str, axes: tuple[str, ...], num_bytes: int, times: int) -> None:
        sizes: dict[str, int] = dict(zip(AXES, shape, strict=True))
        used = tuple(axis for axis in axes if sizes[axis] > 1)
        if used and times:
            found[Collective(kind, used, num_bytes)] += times

    # Two sums forward and two backward in each layer (Shoeybi et al. 2019, section 3). A stage
    # computes its layers again going backward, and remat those in it, of which the output is not
    # needed. Stages compute in their bubbles too.
    units = _Units.of(schedule)
    again = 2 * (pipe > 1) + (parallel.remat == "layer")
    layers = model.num_layers // (pipe * parallel.interleave)
    sums = 2 * units.forward + (2 + again) * units.backward
    add("all-reduce", ("model",), activation, layers * sums)
    # The embedding; of the loss the largest logit, two sums, and the gradient of the hidden states.
    m = parallel.microbatches
    add("all-reduce", VOCAB_AXES, activation, 2 * m)
    add("all-reduce", VOCAB_AXES, _FLOAT32 * positions, m)
    add("all-reduce", VOCAB_AXES, 2 * _FLOAT32 * positions, m)
    if pipe > 1:
        # From the last stage to all before the head, from the first to all behind the embedding.
        add("all-reduce", ("pipe",), activation, 2 * m)
        # A hop for each unit. Nobody needs the last one; XLA sees it where no loop is around it.
        unread = schedule.num_ticks - schedule.num_forward_ticks == 1
        hops = units.forward + units.backward - unread
        add("collective-permute", ("pipe",), activation, hops)
    # All gradients at once, the loss and the number of targets.
    held = _FLOAT32 * (_held_parameters(config, shape, padded_vocab) + 2)
    add("all-reduce", ("data",), held, 1)
    return found


class _Units:
    """Ticks in which a stage computes forward, and backward."""

    def __init__(self, forward: int, backward: int) -> None:
        self.forward, self.backward = forward, backward

    @classmethod
    def of(cls, schedule: Schedule) -> "_Units":
        if schedule.num_stages == 1:
            return cls(schedule.num_microbatches, schedule.num_microbatches)
        return cls(schedule.num_forward_ticks, schedule.num_ticks - schedule.first_backward_tick)


def _held_parameters(config: Config, shape: tuple[int, int, int], padded_vocab: int) -> int:
    """Parameters on one device."""
    model = config.model
    pipe, _, tensor = shape
    embed, hidden = model.embed_dim, model.hidden_dim
    split = 3 * embed * (embed + 1) + embed * embed + hidden * (embed + 1) + embed * hidden
    layer = split // tensor + 2 * embed + 2 * 2 * embed
    tables = 1 if model.tie_embeddings else 2
    vocabulary = tables * padded_vocab * embed // (pipe * tensor)
    rest = model.seq_length * embed + 2 * embed
    return model.num_layers // pipe * layer + vocabulary + rest
