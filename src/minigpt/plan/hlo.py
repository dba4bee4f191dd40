"""Counts the collectives of a compiled program: how often, over which axes, how many bytes.

Reads XLA's optimised HLO. Loops are counted as often as they run. A collective under a condition
is counted as often as the caller knows that the condition holds in a step.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from minigpt.errors import MiniGPTError

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
_ITEM_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "pred": 1, "s8": 1, "u8": 1}
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_COLLECTIVE = re.compile(rf" = (.*?) ({'|'.join(_KINDS)})(?:-start)?\(")
_SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_AXES = re.compile(r"replica_groups=mesh\[[^\]]*\] \{([^}]*)\}")
_WHILE = re.compile(r" while\(.*body=%?([\w.\-]+).*known_trip_count\":\{\"n\":\"(\d+)\"")
_CONDITIONAL = re.compile(r" conditional\(.*branch_computations=\{([^}]*)\}.*stack_frame_id=(\d+)")


class Collective(NamedTuple):
    """A kind of exchange over some axes; a permute is over the ring of stages."""

    kind: str
    axes: tuple[str, ...]
    num_bytes: int
    """Of the result on one device: all that an all-gather gathers, a reduce-scatter's part."""


@dataclass
class _Computation:
    own: Counter[Collective]
    loops: list[tuple[str, int]]
    conditions: list[tuple[str, list[str]]]


def collectives(program: str, *, condition_holds: int) -> Counter[Collective]:
    """How often each collective runs in one execution.

    Args:
        program: text of the optimised HLO.
        condition_holds: executions of each conditional of the source. XLA may have made several
            of it, as in the phases of a pipeline; they count as one.

    Raises:
        MiniGPTError: a collective has no axes of a mesh, as in programs of older XLA.
    """
    computations, entry = _parse(program)
    found = _inside(computations, entry)
    conditional = {
        place: branches for c in computations.values() for place, branches in c.conditions
    }
    for branches in conditional.values():
        for branch in branches:
            for collective, count in _inside(computations, branch).items():
                found[collective] += count * condition_holds
    return found


def _inside(computations: dict[str, _Computation], name: str) -> Counter[Collective]:
    """Of one execution of a computation, without what is under conditions."""
    computation = computations[name]
    counts = Counter(computation.own)
    for body, trips in computation.loops:
        for collective, count in _inside(computations, body).items():
            counts[collective] += count * trips
    return counts


def _parse(program: str) -> tuple[dict[str, _Computation], str]:
    computations: dict[str, _Computation] = {}
    entry = current = ""
    for line in program.splitlines():
        if header := _HEADER.match(line):
            current = header[2]
            computations[current] = _Computation(Counter(), [], [])
            entry = current if header[1] else entry
        elif match := _COLLECTIVE.search(line):
            computations[current].own[_collective(line, match)] += 1
        elif match := _WHILE.search(line):
            computations[current].loops.append((match[1], int(match[2])))
        elif match := _CONDITIONAL.search(line):
            branches = [name.strip().lstrip("%") for name in match[1].split(",")]
            computations[current].conditions.append((match[2], branches))
    return computations, entry


def _collective(line: str, match: re.Match[str]) -> Collective:
    if match[2] == "collective-permute":
        axes = ("pipe",)
    elif groups := _AXES.search(line):
        axes = tuple(name.strip().strip("'") for name in groups[1].split(","))
    else:
        raise MiniGPTError(f"this XLA does not name the mesh axes of a collective: {line.strip()}")
    num_bytes = sum(
        _ITEM_BYTES[dtype] * math.prod(int(size) for size in sizes.split(",") if size)
        for dtype, sizes in _SHAPE.findall(match[1])
    )
    return Collective(match[2], axes, num_bytes)
