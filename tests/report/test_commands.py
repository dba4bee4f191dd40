import json

import pytest
from report_runs import usual_attempt, usual_records, write_run

from minigpt import cli
from minigpt.errors import InterruptedRunError, NonFiniteError

PNG = b"\x89PNG"


@pytest.fixture
def minigpt(monkeypatch, capsys, tmp_path):
    """Runs a command in a temporary folder: exit code, output, errors."""

    def run(*arguments):
        try:
            code = cli.main([*map(str, arguments)])
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    write_run(tmp_path, "one")
    write_run(
        tmp_path,
        "two",
        records=usual_records((6.0, 3.0, 2.5)),
        parallel={"zero": 1},
        samples=[(20, "Once", "[bold] a\nlong \x1b[31mone"), (20, "Other", " words")],
    )
    return run


def test_report_writes_the_page_and_says_where(minigpt, tmp_path):
    code, out, err = minigpt("report", "one")
    assert (code, out, err) == (0, "saved one/report.html\n", "")
    assert (tmp_path / "one" / "report.html").read_text().startswith("<!doctype html>")


def test_report_writes_pictures_too(minigpt, tmp_path):
    code, out, _ = minigpt("report", "one", "--output", "x.html", "--png-dir", "new/pictures")
    assert code == 0
    assert out.splitlines()[0] == "saved x.html"
    pictures = sorted((tmp_path / "new" / "pictures").iterdir())
    assert len(pictures) == 6
    assert all(picture.read_bytes().startswith(PNG) for picture in pictures)
    assert out.splitlines()[1] == "saved new/pictures/loss.png"


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("report", "none"), "'none' is not a run directory; runs there: one, two"),
        (("report", "one", "--output", "no/x.html"), "'no/x.html' cannot be written"),
        (("report", "one", "--png-dir", "one/config.yaml"), "cannot be written"),
        (("compare", "one"), "needs two or more runs, got 1"),
        (("compare", "one", "none"), "'none' is not a run directory"),
        (("compare", "one", "two", "--png", "one/config.yaml/x.png"), "cannot be written"),
        (("compare", "one", "two", *["--price-per-hour", "1"] * 3), "got 3 for 2 runs"),
        (("compare", "one", "two", "--cluster-spec", "laptop"), "laptop has no price_per_hour"),
        (
            ("compare", "one", "two", "--cluster-spec", "laptop", "--price-per-hour", "1"),
            "both give prices",
        ),
    ],
)
def test_refusals(minigpt, arguments, fragment):
    code, _, err = minigpt(*arguments)
    assert code == 2
    assert fragment in err


def test_compare_prints_tables(minigpt, tmp_path):
    prices = ("--price-per-hour", "3600", "--price-per-hour", "7200")
    code, out, err = minigpt("compare", "one", "two", *prices, "--png", "c.png")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "validation loss 3.0000 (the lowest that all have reached)",
        "one two",
        "time to 3.0000 33.0 s (1.53 x) 21.5 s (1.00 x)",
        "money to 3.0000 $33.00 (1.00 x) $43.00 (1.30 x)",
        "steps to 3.0000 20 10",
        "lowest loss 3.0000 2.5000",
        "compiling 3 s (8.4 %) 3 s (8.4 %)",
        "all money $35.75 $71.50",
        "launcher local local",
        "hardware 4 x NVIDIA T4 4 x NVIDIA T4",
        "mesh (pipe x data x model) 2 x 1 x 2 2 x 1 x 2",
        "parallel.zero 0 1",
        "Once text 20 [bold] a",
        "long \ufffd[31mone",
        "One day text 20 -",
        "Other - words",
        "saved c.png",
    ):
        assert line in lines
    assert (tmp_path / "c.png").read_bytes().startswith(PNG)


def test_prices_of_clusters(minigpt):
    specs = ("--cluster-spec", "2xg5.12xlarge", "--cluster-spec", "1xg5.48xlarge")
    _, out, _ = minigpt("compare", "one", "two", *specs)
    assert "price per hour $11.34 $16.29" in [" ".join(line.split()) for line in out.splitlines()]


def test_a_loss_that_is_never_reached_and_no_price(minigpt):
    _, out, _ = minigpt("compare", "one", "two", "--loss", "2.9")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "validation loss 2.9000 (given)" in lines
    assert "time to 2.9000 never 33.0 s" in lines
    assert "money to 2.9000 - -" in lines


def test_compare_prints_json_alone(minigpt):
    code, out, _ = minigpt("compare", "one", "two", "--json")
    assert code == 0
    assert [run["name"] for run in json.loads(out)["runs"]] == ["one", "two"]


def test_other_data_is_marked_where_it_is_asked_for(minigpt, tmp_path):
    write_run(tmp_path, "three", data={"builtin": "x", "num_stories": 5})
    code, out, err = minigpt("compare", "one", "three")
    assert (code, out) == (2, "")
    assert "cannot be compared" in err
    code, out, _ = minigpt("compare", "one", "three", "--anyway")
    assert code == 0
    assert "warning: losses are not comparable: data: 60 stories" in out


@pytest.fixture
def train(monkeypatch, minigpt, tmp_path):
    """Runs ``minigpt train`` on a run that is made up while it "trains"."""
    from minigpt.launch import local
    from minigpt.launch.training import Outcome
    from minigpt.train.checkpoint import Progress
    from minigpt.train.loop import FitResult
    from minigpt.train.run_directory import RunDirectory

    def run(error=None, *, began=True):
        def pretend(config, console):
            if began:
                write_run(tmp_path / "runs", "mine", attempts=[usual_attempt()])
            if error:
                raise error
            result = FitResult(reason="steps", progress=Progress(step=20), val_loss=3.0)
            return Outcome(RunDirectory.of(config), result)

        monkeypatch.setattr(local, "train", pretend)
        return minigpt("train", "--run.name", "mine")

    return run


def test_train_ends_with_a_report(train, tmp_path):
    code, out, err = train()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "its report is runs/mine/report.html"
    assert (tmp_path / "runs" / "mine" / "report.html").exists()


@pytest.mark.parametrize(
    ("error", "expected"),
    [(InterruptedRunError("why", signal_number=15), 143), (NonFiniteError("why"), 3)],
)
def test_a_stopped_run_has_a_report_and_its_own_exit_code(train, tmp_path, error, expected):
    code, out, err = train(error)
    assert (code, err) == (expected, "minigpt: why\n")
    assert out == "its report is runs/mine/report.html\n"


@pytest.mark.parametrize("error", [None, InterruptedRunError("why", signal_number=15)])
def test_a_report_that_fails_is_said_and_changes_nothing_else(train, monkeypatch, error):
    from minigpt.report import page

    def fail(directory):
        raise KeyError("a fault")

    monkeypatch.setattr(page, "write_report", fail)
    code, out, err = train(error)
    assert code == (143 if error else 0)
    assert "the report could not be written: KeyError: 'a fault'" in out
    assert "minigpt report runs/mine tries again" in out
    assert ("finished at step 20" in out) == (error is None)
    assert err == ("minigpt: why\n" if error else "")


def test_a_run_that_did_not_begin_has_no_report(train, tmp_path):
    code, out, _ = train(InterruptedRunError("why", signal_number=15), began=False)
    assert (code, out) == (143, "")
    assert not (tmp_path / "runs").exists()
