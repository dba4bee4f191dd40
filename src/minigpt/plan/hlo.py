"""Counts the collectives of a compiled program: how often, over which axes, how many bytes.

Reads XLA's optimised HLO. Loops are counted as often as they run, those whose number of runs XLA
does not know once (single ticks of a pipeline). A collective under a condition is counted as often
as the caller knows that the condition of that name holds in a step.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minigpt.errors import MiniGPTError

AXES: tuple[str, ...] = ("pipe", "data", "model")

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
_ITEM_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "pred": 1, "s8": 1, "u8": 1}
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_COLLECTIVE = re.compile(rf" = (.*?) ({'|'.join(_KINDS)})(?:-start)?\(")
_SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_BY_NAME = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_BY_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_BY_LIST = re.compile(r"replica_groups=\{(\{[^=]*\})\}")
_WHILE = re.compile(r" while\(.*body=%?([\w.\-]+)(?:.*known_trip_count\":\{\"n\":\"(\d+)\")?")
_CONDITIONAL = re.compile(r" conditional\(.*branch_computations=\{([^}]*)\}.*/(\w+)/cond\"")


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


def collectives(
    program: str, shape: tuple[int, int, int], *, condition_holds: Mapping[str, int]
) -> Counter[Collective]:
    """How often each collective runs in one execution.

    Args:
        program: text of the optimised HLO.
        shape: of the mesh, (pipe, data, model), in the order of the devices.
        condition_holds: executions of each conditional, by its named scope. There may be several
            of one scope, as in the phases of a pipeline; they count as one.

    Raises:
        MiniGPTError: a collective is not over axes of the mesh.
    """
    computations, entry = _parse(program, shape)
    found = _inside(computations, entry)
    conditional = {
        scope: branches for c in computations.values() for scope, branches in c.conditions
    }
    for scope, branches in conditional.items():
        for branch in branches:
            for collective, count in _inside(computations, branch).items():
                found[collective] += count * condition_holds[scope]
    return found


def _inside(computations: dict[str, _Computation], name: str) -> Counter[Collective]:
    """Of one execution of a computation, without what is under conditions."""
    computation = computations[name]
    counts = Counter(computation.own)
    for body, trips in computation.loops:
        for collective, count in _inside(computations, body).items():
            counts[collective] += count * trips
    return counts


def _parse(program: str, shape: tuple[int, int, int]) -> tuple[dict[str, _Computation], str]:
    computations: dict[str, _Computation] = {}
    entry = current = ""
    for line in program.splitlines():
        if header := _HEADER.match(line):
            current = header[2]
            computations[current] = _Computation(Counter(), [], [])
            entry = current if header[1] else entry
        elif match := _COLLECTIVE.search(line):
            computations[current].own[_collective(line, match, shape)] += 1
        elif match := _WHILE.search(line):
            computations[current].loops.append((match[1], int(match[2] or 1)))
        elif match := _CONDITIONAL.search(line):
            branches = [name.strip().lstrip("%") for name in match[1].split(",")]
            computations[current].conditions.append((match[2], branches))
    return computations, entry


def _collective(line: str, match: re.Match[str], shape: tuple[int, int, int]) -> Collective:
    is_permute = match[2] == "collective-permute"
    axes = ("pipe",) if is_permute else _axes(_groups(line), shape)
    if axes is None:
        raise MiniGPTError(f"a collective is not over axes of the mesh {shape}: {line.strip()}")
    num_bytes = sum(
        _ITEM_BYTES[dtype] * math.prod(int(size) for size in sizes.split(",") if size)
        for dtype, sizes in _SHAPE.findall(match[1])
    )
    return Collective(match[2], axes, num_bytes)


_Groups = frozenset[frozenset[int]]


def _axes(groups: _Groups, shape: tuple[int, int, int]) -> tuple[str, ...] | None:
    """The axes of more than one device along which the members of all groups lie."""
    used = [axis for axis, size in enumerate(shape) if size > 1]
    for number in range(1, len(used) + 1):
        for chosen in itertools.combinations(used, number):
            if groups == _along(np.arange(math.prod(shape)).reshape(shape), chosen):
                return tuple(AXES[axis] for axis in chosen)
    return None


def _groups(line: str) -> _Groups:
    """Who takes part in a collective; XLA writes it in three ways."""
    if match := _BY_NAME.search(line):
        pairs = [entry.split("=") for entry in match[1].split(",")]
        names, sizes = [name for name, _ in pairs], [int(size) for _, size in pairs]
        chosen = [names.index(name.strip()) for name in match[2].split(",")]
        return _along(np.arange(math.prod(sizes)).reshape(sizes), chosen)
    if match := _BY_IOTA.search(line):
        devices = np.arange(int(match[1]) * int(match[2])).reshape(_numbers(match[3]))
        devices = devices.transpose(_numbers(match[4])) if match[4] else devices
        return _sets(devices.reshape(int(match[1]), int(match[2])))
    if match := _BY_LIST.search(line):
        return frozenset(
            frozenset(_numbers(group)) for group in re.findall(r"\{([\d,]+)\}", match[1])
        )
    return frozenset()


def _along(devices: NDArray[np.int_], axes: Sequence[int]) -> _Groups:
    last = range(devices.ndim - len(axes), devices.ndim)
    moved = np.moveaxis(devices, axes, last)
    return _sets(moved.reshape(-1, math.prod(moved.shape[axis] for axis in last)))


def _sets(groups: NDArray[np.int_]) -> _Groups:
    return frozenset(frozenset(group) for group in groups.tolist())


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
