import struct
from collections import Counter

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from minigpt.errors import ConfigError
from minigpt.parallel.schedule import Schedule
from minigpt.plan.picture import BUBBLE, figure, save_png
from minigpt.plan.slots import colour

CASES = [
    ("1f1b", 4, 1, 8),
    ("gpipe", 4, 1, 8),
    ("1f1b", 4, 2, 8),
    ("1f1b", 2, 2, 3),
    ("gpipe", 3, 3, 13),
]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def schedule(request):
    return Schedule(*request.param)


def boxes(schedule):
    """(stage, left end, width, height, colour) of each box of the drawing."""
    axes = figure(schedule).axes[0]
    rows = [row for row in axes.collections if isinstance(row, PolyCollection)]
    found = []
    for stage, row in enumerate(rows):
        for path, face in zip(row.get_paths(), row.get_facecolor(), strict=True):
            (left, low), (right, high) = path.get_extents().get_points()
            assert (low + high) / 2 == stage
            found.append((stage, left, right - left, high - low, to_hex(face)))
    return found


def test_the_idle_share_of_the_drawn_area_is_the_bubble(schedule):
    area = Counter()
    for _, _, width, height, face in boxes(schedule):
        area[face] += width * height
    assert area[BUBBLE] / area.total() == pytest.approx(schedule.bubble)
    per_chunk = schedule.num_stages * schedule.num_microbatches
    for chunk in range(schedule.interleave):
        assert area[colour("forward", chunk, schedule.interleave)] == pytest.approx(per_chunk)
        assert area[colour("backward", chunk, schedule.interleave)] == pytest.approx(2 * per_chunk)


def test_boxes_fill_each_row_without_overlap(schedule):
    for stage in range(schedule.num_stages):
        row = sorted(box for box in boxes(schedule) if box[0] == stage)
        ends = [left + width for _, left, width, _, _ in row]
        assert [left for _, left, *_ in row] == pytest.approx([0, *ends[:-1]])


def test_every_box_with_work_has_its_microbatch_in_it(schedule):
    texts = figure(schedule).axes[0].texts
    numbers = {(int(text.get_position()[1]), text.get_position()[0]): text for text in texts}
    working = [box for box in boxes(schedule) if box[4] != BUBBLE]
    assert len(numbers) == len(texts) == len(working)
    for stage, left, width, *_ in working:
        assert (stage, pytest.approx(left + width / 2)) in list(numbers)
    each = 2 * schedule.num_stages * schedule.interleave
    counts = Counter(text.get_text() for text in texts)
    assert counts == {str(i): each for i in range(schedule.num_microbatches)}


def test_it_says_what_it_shows(schedule):
    canvas = figure(schedule)
    axes = canvas.axes[0]
    assert f"{100 * schedule.bubble:.1f} % idle" in axes.get_title()
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"stage {stage}" for stage in range(schedule.num_stages)
    ]
    legend = {text.get_text() for text in canvas.legends[0].get_texts()}
    chunks = [""] if schedule.interleave == 1 else [", chunk a", ", chunk b"]
    assert {f"{way}{chunk}" for way in ("forward", "backward") for chunk in chunks} < legend
    assert "idle" in legend


def test_a_png_of_sensible_size_is_written_over_an_older_one(schedule, tmp_path):
    file = tmp_path / "picture.png"
    file.write_text("something old")
    save_png(schedule, file)
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", content[16:24])
    assert 500 < width < 4600
    assert 150 < height < 600
    assert len(content) < 200_000


def test_a_picture_is_the_same_every_time(tmp_path):
    schedule = Schedule("1f1b", 2, 1, 2)
    for name in ("a.png", "b.png"):
        save_png(schedule, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_long_schedule_is_no_wider_than_can_be_looked_at():
    canvas = figure(Schedule("1f1b", 8, 1, 1000))
    assert canvas.get_size_inches()[0] < 50
    assert not canvas.axes[0].texts
    labels = canvas.axes[0].get_xticklabels()
    assert 20 < len(labels) < 200


@pytest.mark.parametrize("where", ["missing/picture.png", "."])
def test_a_file_that_cannot_be_written_is_refused(tmp_path, where):
    with pytest.raises(ConfigError, match=r"--png .* cannot be written .*: give a file"):
        save_png(Schedule("1f1b", 2, 1, 2), tmp_path / where)
