"""A pipeline schedule cut into slots of time, and what its drawings have in common."""

from dataclasses import dataclass
from string import ascii_lowercase
from typing import Literal

from minigpt.parallel.schedule import Schedule, Unit

Direction = Literal["forward", "backward"]

DURATION: dict[Direction, int] = {"forward": 1, "backward": 2}
"""Time that a unit takes, as ``Schedule.bubble`` has it."""

# Blue and orange stay apart in the common kinds of colour blindness.
_COLOURS: dict[Direction, tuple[int, int, int]] = {
    "forward": (0, 90, 160),
    "backward": (226, 120, 0),
}
_LIGHTEST = 0.6  # share of white in the last of several chunks


@dataclass(frozen=True)
class Slot:
    """Time for one forward or one backward unit on each stage.

    Stages wait for each other at the end of a tick, so a slot takes its time even where a stage
    has nothing to do in it.

    Attributes:
        tick: the tick it belongs to.
        direction: which units run in it.
        start: when it begins, in the time of forward units.
        units: the unit of each stage; None is a bubble.
    """

    tick: int
    direction: Direction
    start: int
    units: tuple[Unit | None, ...]

    @property
    def duration(self) -> int:
        """How long it takes, in the time of forward units."""
        return DURATION[self.direction]


def slots(schedule: Schedule) -> list[Slot]:
    """The slots of all ticks in the order of time; in a tick forward comes first."""
    found: list[Slot] = []
    time = 0
    for tick, works in enumerate(schedule.ticks):
        if tick < schedule.num_forward_ticks:
            found.append(Slot(tick, "forward", time, tuple(work.forward for work in works)))
            time += found[-1].duration
        if tick >= schedule.first_backward_tick:
            found.append(Slot(tick, "backward", time, tuple(work.backward for work in works)))
            time += found[-1].duration
    return found


def chunk_name(chunk: int) -> str:
    """A letter, so that it stands apart from the microbatch's number: a, b, ... z, aa, ab."""
    name = ""
    while chunk >= 0:
        chunk, letter = divmod(chunk, len(ascii_lowercase))
        name = ascii_lowercase[letter] + name
        chunk -= 1
    return name


def colour(direction: Direction, chunk: int, interleave: int) -> str:
    """Of a unit, as ``#rrggbb``: later chunks are lighter."""
    white = _LIGHTEST * chunk / max(1, interleave - 1)
    mixed = (round(part + (255 - part) * white) for part in _COLOURS[direction])
    return "#" + "".join(f"{part:02x}" for part in mixed)


def ink(background: str) -> str:
    """White or black, whichever can be read on ``background``."""
    red, green, blue = (int(background[i : i + 2], 16) for i in (1, 3, 5))
    return "#ffffff" if 0.3 * red + 0.59 * green + 0.11 * blue < 120 else "#000000"
