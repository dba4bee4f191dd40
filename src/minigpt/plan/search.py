"""Every way to spread a run over a cluster, with what each would take, the best first."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from minigpt.config import Config
from minigpt.errors import ConfigError
from minigpt.model.flops import train_flops_per_token
from minigpt.plan.clusters import Cluster
from minigpt.plan.cost import Shape, StepTime, step_time
from minigpt.plan.memory import Memory, step_memory


@dataclass(frozen=True)
class Plan:
    """One way to run a configuration, with its prediction.

    Attributes:
        config: with the whole mesh in ``parallel``.
        cluster: the hardware.
        vocab_size: of the tokenizer.
        padded_vocab: rows of the embedding.
    """

    config: Config
    cluster: Cluster
    vocab_size: int
    padded_vocab: int

    @property
    def shape(self) -> Shape:
        """(pipe, data, model)."""
        parallel = self.config.parallel
        return parallel.pipe, parallel.data, parallel.model

    @cached_property
    def time(self) -> StepTime:
        """Of one step."""
        return step_time(self.config, self.shape, self.padded_vocab, self.cluster)

    @cached_property
    def memory(self) -> Memory:
        """Of one device."""
        return step_memory(self.config, self.shape, self.padded_vocab)

    @property
    def fits(self) -> bool:
        """Whether a device has the memory."""
        return self.memory.total <= self.cluster.device_memory

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step trains on."""
        return self.config.train.global_batch_size * self.config.model.seq_length

    @property
    def tokens_per_second(self) -> float:
        """Of the whole cluster."""
        return self.tokens_per_step / self.time.total

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s over the peak of all devices, where a peak is known."""
        peak = self.cluster.peak_flops.of(self.config.train.compute_dtype)
        if peak is None:
            return None
        flops = train_flops_per_token(self.config.model, self.vocab_size)
        return self.tokens_per_second * flops / (peak * self.cluster.num_devices)

    @property
    def hours(self) -> float:
        """Of all steps, without start-up, evaluation and checkpoints."""
        return self.config.train.steps * self.time.total / 3600

    @property
    def dollars(self) -> float | None:
        """Of all steps, where a price is known."""
        price = self.cluster.dollars_per_second
        return None if price is None else self.hours * 3600 * price

    @property
    def label(self) -> str:
        """The mesh and its options in a few words."""
        parallel = self.config.parallel
        words = [f"{parallel.pipe} x {parallel.data} x {parallel.model}"]
        words.append(f"m {parallel.microbatches}")
        if parallel.interleave > 1:
            words.append(f"interleave {parallel.interleave}")
        if parallel.remat == "layer":
            words.append("remat")
        if parallel.zero:
            words.append("zero 1")
        if parallel.sequence:
            words.append("sequence")
        return ", ".join(words)


def plans(config: Config, cluster: Cluster, vocab_size: int, padded_vocab: int) -> list[Plan]:
    """All valid plans over all devices of a cluster: those that fit by time, then the others.

    The others are ordered by the memory that they need. Where two take the same, the simpler one
    comes first.

    Raises:
        ConfigError: no mesh of the cluster's devices divides the model and the batch.
    """
    platform = replace(config.cluster, platform=cluster.platform, num_workers=0)
    config = replace(config, cluster=platform)
    found = [
        Plan(candidate, cluster, vocab_size, padded_vocab)
        for candidate in _candidates(config, cluster.num_devices, padded_vocab)
    ]
    if not found:
        raise ConfigError(
            f"no mesh of {cluster.num_devices} devices divides the run: train.global_batch_size "
            f"{config.train.global_batch_size}, model.num_layers {config.model.num_layers} and "
            f"model.num_heads {config.model.num_heads} must be divisible by factors of the number "
            "of devices; a batch of a multiple of it always works"
        )
    return sorted(found, key=_rank)


def _rank(plan: Plan) -> tuple[bool, float, int]:
    parallel = plan.config.parallel
    options = (parallel.remat == "layer") + parallel.zero + parallel.sequence + parallel.interleave
    return not plan.fits, plan.time.total if plan.fits else plan.memory.total, options


def _candidates(config: Config, num_devices: int, padded_vocab: int) -> Iterator[Config]:
    batch, layers = config.train.global_batch_size, config.model.num_layers
    for pipe in _divisors(num_devices):
        for tensor in _divisors(num_devices // pipe):
            data = num_devices // (pipe * tensor)
            if batch % data or layers % pipe or padded_vocab % (pipe * tensor):
                continue
            options = (
                (microbatches, interleave, remat, zero, sequence)
                for microbatches in _divisors(batch // data)
                for interleave in (_divisors(layers // pipe) if pipe > 1 else [1])
                for remat in ("none", "layer")
                for zero in ((0, 1) if data > 1 else (0,))
                for sequence in ((False, True) if tensor > 1 else (False,))
            )
            for microbatches, interleave, remat, zero, sequence in options:
                try:
                    parallel = replace(
                        config.parallel,
                        pipe=pipe,
                        data=data,
                        model=tensor,
                        microbatches=microbatches,
                        interleave=interleave,
                        remat=remat,
                        zero=zero,
                        sequence=sequence,
                    )
                    yield replace(config, parallel=parallel)
                except ConfigError:  # heads, hidden units or positions do not divide
                    continue


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
