import itertools
import re

import pytest

from minigpt.parallel.schedule import Schedule
from minigpt.plan.slots import chunk_name, colour, ink, slots
from minigpt.plan.timeline import timeline

CASES = [
    (kind, stages, interleave, microbatches)
    for kind in ("1f1b", "gpipe")
    for stages in (2, 4)
    for interleave in (1, 3)
    for microbatches in (1, 3, 8, 13)
]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def schedule(request):
    return Schedule(*request.param)


def drawn(schedule, width=10**6):
    """The rows of the drawing, with the bands of a wrapped one joined: name -> text."""
    rows = {}
    for line in timeline(schedule, width).plain.splitlines():
        if match := re.match(r"(stage \d+|tick) +(.*)", line):
            rows.setdefault(match[1], []).append(match[2])
    return {name: "  ".join(parts) for name, parts in rows.items()}


def test_1f1b_of_two_stages():
    assert timeline(Schedule("1f1b", 2, 1, 3), 80).plain == (
        "1f1b: P = 2 stages, M = 3 microbatches\n"
        "\n"
        "tick     0   1     2     3     4\n"
        "stage 0  F0  F1..  F2B0  ..B1  B2\n"
        "stage 1  ..  F0B0  F1B1  F2B2  ..\n"
        "\n"
        "F0       microbatch 0 forward\n"
        "B0       the same backward; takes about twice as long\n"
        "..       idle\n"
        "ticks    5 (M + 2 P - 2 = 5)\n"
        "idle     25.0 % of the time ((P - 1) / (M + P - 1) = 25.0 %)\n"
        "waiting  units on a stage, at most 3"
    )


def test_gpipe_of_two_stages():
    assert drawn(Schedule("gpipe", 2, 1, 3)) == {
        "tick": "0   1   2   3   4   5   6   7",
        "stage 0": "F0  F1  F2  ..  ..  B0  B1  B2",
        "stage 1": "..  F0  F1  F2  B0  B1  B2  ..",
    }


def test_every_unit_is_drawn_once_on_its_stage(schedule):
    units = itertools.product(range(schedule.num_microbatches), range(schedule.interleave))
    expected = sorted(
        f"{way}{microbatch}{chunk_name(chunk) if schedule.interleave > 1 else ''}"
        for microbatch, chunk in units
        for way in "FB"
    )
    rows = drawn(schedule)
    for stage in range(schedule.num_stages):
        assert sorted(re.findall(r"[FB]\d+[a-z]*", rows[f"stage {stage}"])) == expected


@pytest.mark.parametrize("width", [1, 40, 80, 200])
def test_wrapping_keeps_the_drawing_and_the_width(width):
    schedule = Schedule("1f1b", 3, 1, 12)
    whole, text = drawn(schedule), timeline(schedule, width).plain
    if width == 1:  # one tick a line is the least; the middle is cut
        assert "are left out" in text
        return
    assert {name: row.split() for name, row in drawn(schedule, width).items()} == {
        name: row.split() for name, row in whole.items()
    }
    assert all(len(line) <= max(width, 80) for line in text.splitlines())
    bands = [line for line in text.splitlines() if line.startswith(("tick ", "stage"))]
    assert max(map(len, bands)) <= width


def test_a_very_long_schedule_keeps_its_ends_and_says_what_is_left_out():
    schedule = Schedule("1f1b", 4, 1, 512)
    text = timeline(schedule, 80).plain
    assert len(text.splitlines()) < 60
    first, last = map(int, re.findall(r"ticks (\d+) to (\d+) are left out", text)[0])
    shown = [int(number) for number in drawn(schedule, 80)["tick"].split()]
    assert shown == [*range(first), *range(last + 1, schedule.num_ticks)]
    assert "B511" in text


def test_a_slot_is_time_for_one_unit_and_time_has_no_gap(schedule):
    columns = slots(schedule)
    assert [slot.start for slot in columns] == [
        sum(slot.duration for slot in columns[:i]) for i in range(len(columns))
    ]
    for i, works in enumerate(schedule.ticks):
        found = {slot.direction: slot.units for slot in columns if slot.tick == i}
        for way in ("forward", "backward"):
            units = tuple(getattr(work, way) for work in works)
            assert found.get(way, (None,) * schedule.num_stages) == units


def test_the_idle_time_of_the_slots_is_the_bubble(schedule):
    columns = slots(schedule)
    idle = sum(slot.duration * slot.units.count(None) for slot in columns)
    time = sum(slot.duration for slot in columns)
    assert idle / (time * schedule.num_stages) == pytest.approx(schedule.bubble)


def test_the_formulas_in_the_notes_hold_unless_a_note_says_why(schedule):
    text = timeline(schedule, 80).plain
    ticks = re.findall(r"ticks +(\d+) \(.* = (\d+)\)", text)[0]
    idle = re.findall(r"idle +([\d.]+) % .* = ([\d.]+) %\)", text)[0]
    assert int(ticks[0]) == len(schedule.ticks)
    assert float(idle[0]) == pytest.approx(100 * schedule.bubble, abs=0.0501)
    explained = schedule.interleave > 1 and schedule.num_microbatches % schedule.num_stages > 0
    assert (ticks[0] != ticks[1], idle[0] != idle[1]) == (explained, explained)
    assert ("\nnote" in text) == explained


def test_chunks_have_letters():
    assert [chunk_name(chunk) for chunk in (0, 1, 25, 26, 27, 51, 52, 701, 702)] == [
        *("a", "b", "z", "aa", "ab", "az", "ba", "zz", "aaa")
    ]


def test_colours_tell_directions_and_chunks_apart_and_can_be_read():
    found = {colour(way, chunk, 4) for way in ("forward", "backward") for chunk in range(4)}
    assert len(found) == 8
    for background in found:
        light = [int(background[i : i + 2], 16) for i in (1, 3, 5)]
        assert ink(background) == ("#ffffff" if max(light[0], light[1]) < 130 else "#000000")


def test_a_terminal_shows_colours():
    styles = {str(span.style) for span in timeline(Schedule("1f1b", 2, 2, 2), 80).spans}
    for way, chunk in itertools.product(("forward", "backward"), (0, 1)):
        assert any(colour(way, chunk, 2) in style for style in styles)
