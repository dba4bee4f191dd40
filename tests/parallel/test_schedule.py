import itertools

import pytest

from minigpt.parallel.schedule import Schedule

CASES = [
    (kind, stages, interleave, microbatches)
    for kind in ("1f1b", "gpipe")
    for stages in (1, 2, 3, 4, 8)
    for interleave in (1, 2, 4)
    for microbatches in (1, 2, 3, 4, 8, 13)
]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def schedule(request):
    return Schedule(*request.param)


def when(schedule, direction):
    """(model chunk, microbatch) -> tick, for all stages."""
    found = {}
    for tick, works in enumerate(schedule.ticks):
        for stage, work in enumerate(works):
            unit = getattr(work, direction)
            if unit is not None:
                key = (unit.chunk * schedule.num_stages + stage, unit.microbatch)
                assert key not in found, "a unit runs once"
                found[key] = tick
    return found


def test_every_unit_runs_once(schedule):
    chunks = range(schedule.num_stages * schedule.interleave)
    units = set(itertools.product(chunks, range(schedule.num_microbatches)))
    assert set(when(schedule, "forward")) == units
    assert set(when(schedule, "backward")) == units


def test_dependencies_hold(schedule):
    """Forward follows the chunk before, backward the chunk behind; one tick carries one hop."""
    forward, backward = when(schedule, "forward"), when(schedule, "backward")
    last = schedule.num_stages * schedule.interleave - 1
    for (chunk, microbatch), tick in forward.items():
        if chunk > 0:
            assert tick == forward[chunk - 1, microbatch] + 1
        if chunk == last:
            assert backward[chunk, microbatch] >= tick
        else:
            assert backward[chunk, microbatch] == backward[chunk + 1, microbatch] + 1


def test_a_hop_is_to_the_neighbour_and_nothing_is_overwritten(schedule):
    """A stage keeps what it received for one tick only: it must be used in the next."""
    for stage in range(schedule.num_stages):
        for tick, works in enumerate(schedule.ticks[:-1]):
            unit = works[stage].forward
            chunk = None if unit is None else unit.chunk * schedule.num_stages + stage
            if chunk is None or chunk == schedule.num_stages * schedule.interleave - 1:
                continue
            receiver = schedule.ticks[tick + 1][(stage + 1) % schedule.num_stages].forward
            assert receiver is not None
            assert receiver.microbatch == unit.microbatch
            assert receiver.chunk == (chunk + 1) // schedule.num_stages


def test_slots_are_never_shared(schedule):
    for stage in range(schedule.num_stages):
        held = {}
        for works in schedule.ticks:
            forward, backward = works[stage].forward, works[stage].backward
            if forward is not None:
                assert forward.slot not in held
                held[forward.slot] = (forward.chunk, forward.microbatch)
            if backward is not None:
                assert held.pop(backward.slot) == (backward.chunk, backward.microbatch)
        assert not held


def test_live_activations_are_bounded(schedule):
    stages, chunks = schedule.num_stages, schedule.interleave
    all_units = chunks * schedule.num_microbatches
    forward = [work.forward for works in schedule.ticks for work in works]
    assert schedule.num_slots == 1 + max(unit.slot for unit in forward if unit is not None)
    if schedule.kind == "gpipe":
        assert schedule.num_slots == all_units
    else:
        assert schedule.num_slots <= min(2 * stages * chunks - 1, all_units)


@pytest.mark.parametrize("interleave", [1, 2, 4])
def test_1f1b_does_not_grow_with_microbatches(interleave):
    few, many = (Schedule("1f1b", 4, interleave, m).num_slots for m in (8, 64))
    assert few == many


def test_the_number_of_ticks_is_the_formula(schedule):
    stages, chunks, microbatches = (
        schedule.num_stages,
        schedule.interleave,
        schedule.num_microbatches,
    )
    missing = -microbatches % stages if chunks > 1 else 0  # in the last group
    places = chunks * microbatches + (chunks - 1) * missing
    ticks = {
        "1f1b": places + chunks * stages + stages - 2,
        "gpipe": 2 * (places + stages - 1),
    }
    assert schedule.num_ticks == ticks[schedule.kind] == len(schedule.ticks)
    assert any(work.forward or work.backward for work in schedule.ticks[-1])


def test_the_bubble_shrinks_with_interleaving():
    bubbles = [Schedule("1f1b", 4, v, 8).bubble for v in (1, 2, 4)]
    assert bubbles == pytest.approx([3 / 11, 3 / 19, 3 / 35])  # (S - 1) / (v M + S - 1)
    assert Schedule("1f1b", 1, 1, 5).bubble == 0
    assert Schedule("1f1b", 4, 1, 2).bubble == pytest.approx(3 / 5)
