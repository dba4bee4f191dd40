"""Pipeline schedules as data: which unit of work every stage does at every tick.

A *unit* is one microbatch through one chunk of layers, forward or backward. A stage holds
``interleave`` chunks; chunk ``c`` of stage ``s`` is number ``c * num_stages + s`` of the model, so
activations travel ``interleave`` times round the ring of stages (Narayanan et al. 2021, "Efficient
large-scale language model training on GPU clusters using Megatron-LM", section 2.2). Every stage
does at most one forward and one backward unit in a tick, and what it produces reaches its neighbour
before the next tick.

Plain Python: a schedule can be drawn, counted and tested without a device.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

Kind = Literal["1f1b", "gpipe"]


@dataclass(frozen=True)
class Unit:
    """A microbatch through one of a stage's chunks.

    Attributes:
        chunk: which of the stage's chunks.
        microbatch: which microbatch.
        slot: where the unit's residuals wait for the backward pass; no two units that wait at the
            same time share one.
    """

    chunk: int
    microbatch: int
    slot: int


@dataclass(frozen=True)
class Work:
    """What a stage does in a tick; None is a bubble."""

    forward: Unit | None
    backward: Unit | None


@dataclass(frozen=True)
class Schedule:
    """The work of a pipeline for one step.

    Attributes:
        kind: "1f1b" starts a microbatch's backward pass as soon as its forward pass is through;
            "gpipe" when all forward passes are (Huang et al. 2019).
        num_stages: devices in the ring.
        interleave: chunks of layers of each stage.
        num_microbatches: microbatches of the step, any number.
    """

    kind: Kind
    num_stages: int
    interleave: int
    num_microbatches: int

    @property
    def _places(self) -> int:
        """Forward units that time is reserved for on each stage.

        With several chunks microbatches travel in groups of ``num_stages``, through one chunk
        after the other; where the last group is not full, its chunks but the last leave places
        empty.
        """
        stages, microbatches = self.num_stages, self.num_microbatches
        if self.interleave == 1:
            return microbatches
        full_groups = (microbatches - 1) // stages
        in_last = microbatches - full_groups * stages
        return (full_groups * self.interleave + self.interleave - 1) * stages + in_last

    @property
    def num_forward_ticks(self) -> int:
        """Ticks in which some stage may have a forward unit; they come first."""
        return self._places + self.num_stages - 1

    @property
    def first_backward_tick(self) -> int:
        """Tick of the first backward unit: of the last chunk, on the last stage."""
        through_all_chunks = self.interleave * self.num_stages - 1
        return through_all_chunks if self.kind == "1f1b" else self.num_forward_ticks

    @property
    def num_ticks(self) -> int:
        """Ticks from the first forward to the last backward unit."""
        return self.first_backward_tick + self._places + self.num_stages - 1

    @property
    def bubble(self) -> float:
        """Share of a stage's time that is idle, if a backward unit takes twice a forward one."""
        time = self.num_forward_ticks + 2 * (self.num_ticks - self.first_backward_tick)
        return 1 - 3 * self.interleave * self.num_microbatches / time

    @cached_property
    def num_slots(self) -> int:
        """Most units that wait on one stage, the first, for their backward pass."""
        through = [0, *accumulate(self._place(i) is not None for i in range(self._places))]
        behind = self.first_backward_tick + self.num_stages - 1
        return max(
            through[tick + 1] - through[max(0, tick - behind)] for tick in range(self._places)
        )

    @cached_property
    def ticks(self) -> tuple[tuple[Work, ...], ...]:
        """``ticks[t][s]`` is the work of stage ``s`` at tick ``t``."""
        stages = [self._stage(stage) for stage in range(self.num_stages)]
        return tuple(zip(*stages, strict=True))

    def _stage(self, stage: int) -> list[Work]:
        """All ticks of a stage; slots are handed out as they become free."""
        free: list[int] = []
        num_slots = 0
        waiting: dict[tuple[int, int], Unit] = {}
        works: list[Work] = []
        for tick in range(self.num_ticks):
            forward = backward = None
            if (place := self._place(tick - stage)) is not None:
                if not free:
                    free.append(num_slots)
                    num_slots += 1
                forward = waiting[place] = Unit(*place, slot=free.pop())
            behind = self.num_stages - 1 - stage
            place = self._place(tick - self.first_backward_tick - behind)
            if place is not None:
                chunk, microbatch = place
                backward = waiting.pop((self.interleave - 1 - chunk, microbatch))
                free.append(backward.slot)
            works.append(Work(forward, backward))
        return works

    def _place(self, index: int) -> tuple[int, int] | None:
        """(chunk, microbatch) of the index-th place of a stage; chunks count back going back."""
        if not 0 <= index < self._places:
            return None
        if self.interleave == 1:
            return 0, index
        group, rest = divmod(index, self.interleave * self.num_stages)
        chunk, member = divmod(rest, self.num_stages)
        microbatch = group * self.num_stages + member
        return (chunk, microbatch) if microbatch < self.num_microbatches else None
