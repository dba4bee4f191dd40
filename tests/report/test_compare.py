import pytest
from report_runs import DATA, Attempt, usual_attempt, usual_records, write_run

from minigpt.errors import ConfigError
from minigpt.report.compare import charts, compare, differing_fields
from minigpt.report.compare_table import as_json
from minigpt.report.run import read_run
from minigpt.train.record import Record

FILES = {"files": [["a.txt", "11112222"], ["b.txt", "33334444"]], "max_stories": None}


@pytest.fixture
def compared(tmp_path):
    """Compares made-up runs, given by their fields."""

    def of(*runs, loss=None, prices=(), anyway=False):
        read = [
            read_run(write_run(tmp_path / str(n), **({"name": f"run{n}"} | fields)))
            for n, fields in enumerate(runs)
        ]
        return compare(read, loss=loss, prices=prices, anyway=anyway)

    return of


def slow():
    """As ``usual_attempt``, with a start that takes a minute."""
    return (
        Attempt(1000.0, launcher="ray")
        .ready(0, 60.0, mesh={"pipe": 1, "data": 4, "model": 1})
        .pause("evaluation", 0, 2.0)
        .steps(5, 5, 5.0)
        .steps(10, 5, 5.0)
        .pause("evaluation", 10, 1.0)
        .steps(15, 5, 5.0)
        .steps(20, 5, 5.0)
        .pause("evaluation", 20, 1.0)
        .end("steps")
    )


def test_the_lowest_loss_that_all_reached(compared):
    found = compared({}, {"records": usual_records((6.0, 3.5, 3.5))}, prices=[3.6, 7.2])
    assert (found.loss, found.loss_is_given, found.split) == (3.5, False, "val")
    one, other = found.sides
    assert (one.reached.step, one.reached.tokens) == (20, 2000)
    assert one.reached.seconds == pytest.approx(33.0)
    assert one.reached.dollars == pytest.approx(33.0 * 3.6 / 3600)
    assert (other.reached.step, other.reached.seconds) == (10, pytest.approx(21.5))
    assert other.reached.dollars == pytest.approx(21.5 * 7.2 / 3600)


def test_a_given_loss_may_never_be_reached(compared):
    found = compared({}, {"records": usual_records((6.0, 5.0, 4.5))}, loss=4.2)
    assert found.loss_is_given
    assert found.sides[0].reached.step == 10
    assert found.sides[1].reached is None


def test_time_to_a_loss_counts_start_up_and_restarts(compared):
    killed = Attempt(1000.0).ready(0).compile(0).pause("evaluation", 0, 1.0).steps(5, 5, 50.0)
    found = compared({"attempts": [killed, *[usual_attempt(9000.0)]]}, {"attempts": [slow()]})
    assert [side.reached.seconds for side in found.sides] == pytest.approx([58.5 + 33.0, 84.0])
    assert found.sides[0].split.seconds["lost"] > 50


def test_without_validation_the_mean_of_training_losses_counts(compared):
    losses = [5.0, 1.0, 4.0, 3.0]
    records = [
        Record(step=n, split="train", loss=loss, tokens=10 * n, elapsed_seconds=float(n))
        for n, loss in enumerate(losses, 1)
    ]
    found = compared({"records": records, "attempts": []}, {}, loss=3.2)
    assert found.split == "train"
    assert [value for _, value in found.sides[0].losses] == pytest.approx([5.0, 3.0, 10 / 3, 3.25])
    assert found.sides[0].reached.step == 2  # the mean, not the single loss of 1.0
    assert "mean of the last 10 records" in found.measure
    many = [Record(step=n, split="train", loss=float(n)) for n in range(1, 21)]
    found = compared({"records": many, "attempts": []}, {}, loss=0.0)
    assert found.sides[0].losses[-1][1] == pytest.approx(15.5)


@pytest.mark.parametrize(
    ("fields", "fragments"),
    [
        (
            {"data": FILES},
            (
                "data: 60 stories of the built-in corpus in run0",
                "a.txt (11112222), b.txt (33334444) in run1",
            ),
        ),
        (
            {"data": FILES | {"max_stories": 9}},
            ("the first 9 stories of a.txt (11112222), b.txt (33334444) in run1",),
        ),
        ({"data": DATA | {"num_stories": 50}}, ("50 stories of the built-in corpus in run1",)),
        ({"tokenizer": "gpt2"}, ("data.tokenizer: byte in run0, gpt2 in run1",)),
        ({"layout": "padded"}, ("data.layout: packed in run0, padded in run1",)),
        ({"val_fraction": 0.1}, ("data.val_fraction: 0.02 in run0, 0.1 in run1",)),
    ],
)
def test_other_text_or_tokens_are_refused_or_marked(tmp_path, fields, fragments):
    paths = [write_run(tmp_path, "run0"), write_run(tmp_path, "run1", data=DATA)]
    config = read_run(paths[1]).config.data
    changed = {"data": DATA} | fields
    text = (paths[1] / "config.yaml").read_text()
    for name in ("tokenizer", "layout", "val_fraction"):
        if name in changed:
            text = text.replace(f"{name}: {getattr(config, name)}", f"{name}: {changed[name]}")
    (paths[1] / "config.yaml").write_text(text)
    if fields.get("data"):
        write_run(tmp_path, "run1", data=fields["data"])
    runs = [read_run(path) for path in paths]
    with pytest.raises(ConfigError, match="cannot be compared; these differ") as refused:
        compare(runs, loss=None, prices=[], anyway=False)
    found = compare(runs, loss=None, prices=[], anyway=True)
    for fragment in fragments:
        assert fragment in str(refused.value)
        assert fragment in found.warnings[0]
    assert "--anyway" in str(refused.value)
    assert found.warnings[0].startswith("losses are not comparable: ")


def test_what_is_not_quite_the_same_measure_is_said(compared):
    found = compared({"model": {"seq_length": 16}}, {"attempts": []})
    text = "\n".join(found.warnings)
    assert "model.seq_length differs (16, 32), so losses are not quite the same measure" in text
    assert "run1: times are those of the training loop alone" in text
    assert "run1: the run has no events.jsonl" in text
    assert compared({}, {}).warnings == []


def test_only_fields_that_differ_are_listed(compared):
    found = compared({"train": {"seed": 3}, "parallel": {"zero": 1}}, {})
    assert differing_fields(found) == {"train.seed": [3, 0], "parallel.zero": [1, 0]}


def test_runs_of_the_same_name_are_told_apart(compared):
    found = compared({"name": "same"}, {"name": "same"}, {"name": "other"})
    names = [side.name for side in found.sides]
    assert names[2] == "other"
    assert names[0].endswith("0/same")
    assert names[1].endswith("1/same")


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ((1.0, 2.0, 3.0), "once for all runs or once for each, got 3 for 2 runs"),
        ((-1.0,), "at least 0 and finite, got -1.0"),
        ((float("nan"),), "at least 0 and finite, got nan"),
    ],
)
def test_prices_that_do_not_fit_are_refused(compared, prices, message):
    with pytest.raises(ConfigError, match=message):
        compared({}, {}, prices=prices)


def test_one_price_is_for_all(compared):
    found = compared({}, {}, prices=[2.0])
    assert [side.price_per_hour for side in found.sides] == [2.0, 2.0]
    assert found.sides[0].dollars(1800.0) == 1.0


def test_one_run_is_not_a_comparison(compared):
    with pytest.raises(ConfigError, match="needs two or more runs, got 1"):
        compared({})


def test_a_run_without_a_loss_is_refused(tmp_path):
    paths = [write_run(tmp_path, name) for name in ("one", "two")]
    (paths[1] / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match="two' has recorded no loss yet"):
        compare([read_run(path) for path in paths], loss=None, prices=[], anyway=False)


def test_the_curves(compared):
    found = compared({}, {"attempts": [slow()]}, prices=[1.0, 36.0])
    drawn = {chart.key: chart for chart in charts(found)}
    assert list(drawn) == ["steps", "tokens", "time", "money"]
    assert [curve.label for curve in drawn["steps"].curves] == ["run0", "run1"]
    assert drawn["tokens"].curves[0].points == [(0, 6.0), (1000, 4.0), (2000, 3.0)]
    assert drawn["time"].curves[1].points[-1] == (pytest.approx(84.0), 3.0)
    assert drawn["money"].curves[1].points[-1] == (pytest.approx(0.84), 3.0)
    assert [chart.key for chart in charts(compared({}, {}))] == ["steps", "tokens", "time"]


def test_json_has_everything(compared):
    found = as_json(compared({}, {"attempts": [slow()]}, loss=3.0, prices=[3600.0]))
    one, other = found["runs"]
    assert (found["loss"], found["loss_is_given"], found["split"]) == (3.0, True, "val")
    assert one["reached"] == {"step": 20, "tokens": 2000, "seconds": 33.0, "dollars": 33.0}
    assert sum(one["time_split"].values()) == pytest.approx(one["elapsed_seconds"]) == 35.75
    assert (one["lowest_loss"], one["last_loss"], one["mfu"]) == (3.0, 3.0, 0.25)
    assert one["tokens_per_second"] == 112.5
    assert one["dollars"] == 35.75
    assert other["launchers"] == ["ray"]
    assert other["facts"]["mesh"] == {"pipe": 1, "data": 4, "model": 1}
    assert one["samples"] == [
        {"prompt": "Once", "text": " text 20"},
        {"prompt": "One day", "text": " text 20"},
    ]
    never = as_json(compared({}, {}, loss=0.5))
    assert [run["reached"] for run in never["runs"]] == [None, None]
