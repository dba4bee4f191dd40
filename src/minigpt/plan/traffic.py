"""What one device exchanges in one training step, by formula.

Written from the method, not from the program; tests compare the two, each kind, axis and byte.
Notation: a microbatch of ``R`` rows of ``T`` positions on one device, ``E`` wide; a *unit* is
``R T E`` numbers. Sums of activations are float32; what else travels is in the compute dtype,
except on a CPU, where XLA exchanges float32 only.
"""

from collections import Counter

from minigpt.config import Config
from minigpt.parallel.schedule import Schedule
from minigpt.plan.counts import Held, held_parameters
from minigpt.plan.hlo import AXES, Collective

_VOCAB_AXES: tuple[str, ...] = ("pipe", "model")
_FLOAT32 = 4


def step_traffic(
    config: Config, shape: tuple[int, int, int], padded_vocab: int
) -> Counter[Collective]:
    """Collectives of one training step on one device.

    Args:
        config: the run.
        shape: (pipe, data, model).
        padded_vocab: rows of the embedding.
    """
    traffic = _Traffic(config, shape)
    traffic.layers()
    traffic.embedding_and_loss()
    traffic.stages()
    held = held_parameters(config, shape, padded_vocab)
    traffic.gradients(held)
    traffic.optimizer(held)
    return traffic.found


class _Traffic:
    def __init__(self, config: Config, shape: tuple[int, int, int]) -> None:
        parallel, model = config.parallel, config.model
        self.config, self.shape = config, shape
        self.sizes = dict(zip(AXES, shape, strict=True))
        pipe, data, tensor = shape
        self.microbatches = parallel.microbatches
        rows = config.train.global_batch_size // (data * self.microbatches)
        self.positions = rows * model.seq_length
        self.unit = self.positions * model.embed_dim
        self.own = self.unit // tensor if parallel.sequence else self.unit
        half = config.train.compute_dtype == "bfloat16" and config.cluster.platform != "cpu"
        self.item = 2 if half else _FLOAT32
        schedule = Schedule(parallel.schedule, pipe, parallel.interleave, self.microbatches)
        self.ticks_forward = schedule.num_forward_ticks
        self.ticks_backward = schedule.num_ticks - schedule.first_backward_tick
        self.found: Counter[Collective] = Counter()

    def add(self, kind: str, axes: tuple[str, ...], num_bytes: int, times: int) -> None:
        used = tuple(axis for axis in axes if self.sizes[axis] > 1)
        if used and times and num_bytes:
            self.found[Collective(kind, used, num_bytes)] += times

    def layers(self) -> None:
        """Tensor parallelism: two sums forward and two backward in each layer.

        Shoeybi et al. 2019, section 3; with sequences divided Korthikanti et al. 2022, section
        4.2.2. Remat computes a layer again going backward, of which the output is not needed.
        """
        parallel = self.config.parallel
        times = self.microbatches * self.config.model.num_layers // self.sizes["pipe"]
        remat = int(parallel.remat == "layer")
        if not parallel.sequence:
            self.add("all-reduce", ("model",), _FLOAT32 * self.unit, (2 + remat) * times)
            self.add("all-reduce", ("model",), self.item * self.unit, 2 * times)
            return
        # Gathered going backward: gradients of what leaves, and inputs that were not kept.
        self.add("all-gather", ("model",), self.item * self.unit, (2 + 4) * times)
        self.add("reduce-scatter", ("model",), _FLOAT32 * self.own, (2 + remat) * times)
        self.add("reduce-scatter", ("model",), self.item * self.own, 2 * times)

    def embedding_and_loss(self) -> None:
        """Hidden states of the embedding and their gradient; the loss's maximum and sums."""
        m = self.microbatches
        if self.config.parallel.sequence:
            self.add("reduce-scatter", ("model",), _FLOAT32 * self.own, 2 * m)
            self.add("all-reduce", ("pipe",), _FLOAT32 * self.own, 2 * m)
            self.add("all-gather", ("model",), _FLOAT32 * self.unit, m)
            self.add("all-gather", ("model",), self.item * self.unit, m)
        else:
            self.add("all-reduce", _VOCAB_AXES, _FLOAT32 * self.unit, 2 * m)
        self.add("all-reduce", _VOCAB_AXES, _FLOAT32 * self.positions, m)
        self.add("all-reduce", _VOCAB_AXES, 2 * _FLOAT32 * self.positions, m)

    def stages(self) -> None:
        """From the last stage to all before the head, from the first to all behind the embedding.

        And a hop in each tick, forward and backward, from all stages at once.
        """
        self.add("all-reduce", ("pipe",), _FLOAT32 * self.own, 2 * self.microbatches)
        hops = self.ticks_forward + self.ticks_backward
        self.add("collective-permute", ("pipe",), _FLOAT32 * self.own, hops)

    def gradients(self, held: Held) -> None:
        """All gradients at once, with the loss and the number of targets."""
        if self.config.parallel.sequence:
            not_split = held.whole + held.rest
            self.add("all-reduce", ("model",), _FLOAT32 * not_split, 1)
        divided = held.divided if self.config.parallel.zero else ()
        self.add("all-reduce", ("data",), _FLOAT32 * (held.total - sum(divided) + 2), 1)
        for number in divided:
            self.add("reduce-scatter", ("data",), _FLOAT32 * number // self.sizes["data"], 1)

    def optimizer(self, held: Held) -> None:
        """The norm of the whole gradient; with ZeRO the parameters of all groups."""
        zero = self.config.parallel.zero and held.divided
        self.add("all-reduce", AXES if zero else _VOCAB_AXES, _FLOAT32, 1)
        if zero:
            for number in held.divided:
                self.add("all-gather", ("data",), _FLOAT32 * number, 1)
