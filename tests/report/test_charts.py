import re

import pytest
from report_runs import Attempt, usual_attempt, write_run

from minigpt.report.charts import Chart, Curve, run_charts, thin, time_unit
from minigpt.report.run import read_run
from minigpt.report.svg import svg, ticks


def chart(*curves, **more):
    fields = {"key": "k", "title": "T", "x_label": "step", "y_label": "loss"} | more
    return Chart(curves=curves, **fields)


def test_the_charts_of_a_run(tmp_path):
    charts = {c.key: c for c in run_charts(read_run(write_run(tmp_path)))}
    assert list(charts) == [
        "loss",
        "loss-time",
        "throughput",
        "learning-rate",
        "gradient-norm",
        "step-time",
    ]
    train, val = charts["loss"].curves
    assert val.points == [(0, 6.0), (10, 4.0), (20, 3.0)]
    assert train.points[-1] == (20, 2.5)
    assert charts["step-time"].curves[1].points[0] == (5, 50.0)  # milliseconds
    seconds = [x for x, _ in charts["loss-time"].curves[1].points]
    assert seconds == pytest.approx([6.0, 21.5, 33.0])
    assert charts["loss-time"].x_label == "seconds since the start"
    assert charts["loss"].marks == []


def test_restarts_are_marked_and_times_without_events_are_said_to_be_others(tmp_path):
    attempts = [usual_attempt(), Attempt(5000.0).ready(20).end("steps")]
    loss = run_charts(read_run(write_run(tmp_path, "again", attempts=attempts)))[0]
    assert loss.marks == [20]
    old = run_charts(read_run(write_run(tmp_path, "old", attempts=[])))
    assert old[1].x_label == "seconds since the start (of the loop)"
    assert old[1].curves[1].points[-1][0] == 23.0


@pytest.mark.parametrize(
    ("seconds", "unit"), [(10, "seconds"), (600, "minutes"), (9e4, "hours"), (0, "seconds")]
)
def test_units_of_time(seconds, unit):
    assert time_unit(seconds)[0] == unit


def test_many_points_are_thinned_but_no_peak_is_lost():
    points = [(float(x), 1e9 if x == 7777 else -1e9 if x == 3333 else x % 7) for x in range(10_000)]
    few = thin(points)
    assert len(few) <= 400
    assert few == sorted(few)
    assert {(7777.0, 1e9), (3333.0, -1e9)} <= set(few)
    assert thin(points[:400]) == points[:400]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.013, 0.021, [0.012, 0.014, 0.016, 0.018, 0.02, 0.022]),
        (-3, 2, [-3, -2, -1, 0, 1, 2]),
        (5, 5, [4.4, 4.6, 4.8, 5.0, 5.2, 5.4, 5.6]),
        (0, 0, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks_are_round_and_reach_around(low, high, expected):
    assert ticks(low, high, 5) == pytest.approx(expected)


def test_points_stand_where_their_values_are():
    drawn = svg(chart(Curve("a", [(0, 1.0), (50, 3.0), (100, 2.0)], 0)))
    (line,) = re.findall(r'polyline points="([^"]+)"', drawn)
    places = [tuple(map(float, point.split(","))) for point in line.split()]
    assert [x for x, _ in places] == [58.0, 263.0, 468.0]
    (_, low), (_, high), (_, middle) = places
    assert high == 26.0  # the top
    assert low == 222.0  # the bottom
    assert middle == pytest.approx((low + high) / 2)
    assert 'viewBox="0 0 480 260"' in drawn


def test_a_single_point_is_a_dot_and_nothing_is_a_sentence():
    assert "<circle" in svg(chart(Curve("a", [(3, 1.0)], 0)))
    assert "nothing was recorded" in svg(chart(Curve("a", [], 0)))


def test_text_in_a_chart_is_escaped():
    drawn = svg(
        chart(
            Curve("<b>&\"'", [(0, 1.0), (1, 2.0)], 0),
            Curve("other", [(0, 1.0), (1, 2.0)], 1),
            title='"><script>',
            x_label="<i>",
        )
    )
    assert "<b>" not in drawn
    assert "<i>" not in drawn
    assert "<script>" not in drawn
