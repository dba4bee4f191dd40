import re
from html.parser import HTMLParser

import pytest
from report_runs import Attempt, usual_attempt, write_run

from minigpt.errors import CheckpointError, ConfigError
from minigpt.report.page import page, write_report
from minigpt.report.run import read_run

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps text, tags and attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.shown = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.shown.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.shown).split())


@pytest.fixture
def read(tmp_path):
    """The page of a made-up run."""

    def of(**fields):
        return Reader(page(read_run(write_run(tmp_path, **fields))))

    return of


def test_the_page_is_whole_and_has_everything(read):
    found = read()
    for fragment in (
        "one",
        "Finished: the last step (step 20 of 12)",
        "3.0000 validation loss",
        "2,000 tokens",
        "112 tokens per second (median)",
        "25 % MFU (median)",
        "1.23 M parameters",
        "4 x NVIDIA T4",
        "Loss nats per token",
        "Throughput tokens per second",
        "Learning rate",
        "Gradient norm",
        "compiling 3 s 8.4 %",
        "all 35.8 s",
        "Starts and restarts",
        "1 finished: the last step 1970-01-01 00:16:40 local 0 20 35.8 s",
        "2 pipe x 1 data x 2 model; a box is a device (process:number in it)",
        "stage 0: layers 0 rows 0-7 0:0 0:1 stage 1: layers 1 rows 0-7 1:0 1:1",
        "together 1.00 GiB",
        "after step 20 Once text 20 One day text 20",
        "embed_dim 16",
        "num_stories 60",
        "nodes 2",
        "jax 0.12.0",
        "peak FLOP/s of all devices 4e+12",
    ):
        assert fragment in found.text
    assert found.tags.count("svg") == 7  # six charts and the pipeline
    assert {"html", "head", "title", "body", "style", "script"} <= set(found.tags)


def test_the_page_needs_nothing_from_outside(tmp_path):
    text = page(read_run(write_run(tmp_path)))
    found = Reader(text)
    assert not {"link", "img", "iframe", "object"} & set(found.tags)
    assert not {name for name, _ in found.attributes} & {"src", "href", "srcset", "action"}
    assert not re.search(r"@import|url\(|fetch\(|XMLHttp|import\(", text)
    links = set(re.findall(r"https?://[^\"' )]+", text))
    assert links <= {"http://www.w3.org/2000/svg"}  # the name of a language, not a place


def test_whatever_comes_from_files_is_escaped(read):
    bad = '</style></script><script>alert(1)</script><img src=x onerror="x">\'&'
    attempt = usual_attempt()
    attempt.lines[1] |= {"device_kind": bad, "system": bad, "versions": {bad: bad}}
    attempt.lines[1]["device_names"] = [bad] * 4
    attempt.lines[0]["launcher"] = bad
    attempt.lines[-1]["reason"] = bad
    found = read(
        attempts=[attempt],
        samples=[(0, bad, bad)],
        name="<b>name",
        data={bad: bad, "files": [[bad, bad]]},
        run={"wandb_project": bad},
    )
    assert found.tags.count("script") == 1
    assert not {"img", "b>name"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert found.text.count("alert(1)") >= 10
    assert "<b>name" in found.text


@pytest.mark.parametrize(
    ("reason", "fragment"),
    [
        ("target_loss", "Finished: the target loss"),
        ("signal", "Stopped by a signal, with a checkpoint"),
        ("non_finite", "Stopped: loss or gradients not finite"),
        ("RuntimeError", "Ended by RuntimeError"),
        (None, "No end was written: killed, or still running"),
    ],
)
def test_how_a_run_ended(read, reason, fragment):
    attempt = Attempt(100.0).ready(0).steps(20, 20, 20.0)
    found = read(attempts=[attempt if reason is None else attempt.end(reason)])
    assert fragment in found.text
    warns = ("class", "warn") in found.attributes
    assert warns == (reason != "target_loss")


def test_an_old_run_says_what_is_not_known(read):
    found = read(attempts=[])
    for fragment in (
        "At step 20 of 12; how it ended is not known.",
        "the run has no events.jsonl: start-up, restarts and steps done again are not known",
        "the mesh is not known: the run has no events.jsonl",
        "not known: the compiled step was not recorded",
        "only known: MiniGPT 0.1.0",
    ):
        assert fragment in found.text


def test_a_run_that_has_just_begun(tmp_path):
    path = write_run(tmp_path, attempts=[Attempt(100.0)], samples=[])
    (path / "metrics.jsonl").unlink()
    found = Reader(page(read_run(path)))
    assert "nothing was recorded" in found.text
    assert "none were taken" in found.text
    assert "no time was recorded" in found.text


def test_many_samples_are_folded(read):
    samples = [(step, "Once", f"text-{step}") for step in range(0, 1001, 100)]
    found = read(samples=samples)
    assert "7 more" in found.text
    assert [t for t in found.text.split() if t.startswith("text-")][:4] == [
        "text-0",
        "text-300",
        "text-600",
        "text-1000",
    ]
    assert all(f"text-{step}" in found.text for step in range(0, 1001, 100))


def test_the_pipeline_is_drawn_with_its_chunks(read):
    found = read(
        model={"num_layers": 4},
        parallel={"pipe": 2, "interleave": 2, "microbatches": 4, "data": 1},
    )
    assert "1f1b: 2 stages, 4 microbatches, 11 % of the time idle" in found.text
    assert "forward, chunk a forward, chunk b backward, chunk a" in found.text
    assert "stage 1: layers 1, 3" in found.text
    alone = {"pipe": 1, "data": 1, "model": 1}
    found = read(name="alone", attempts=[Attempt(1.0).ready(0, mesh=alone).end("steps")])
    assert "One stage: no pipeline. A step adds up the gradients of 1 microbatch." in found.text
    assert "all layers" in found.text


def test_large_meshes_are_cut(read):
    large = {"pipe": 1, "data": 64, "model": 2}
    attempt = Attempt(1.0).ready(0, mesh=large, device_names=[]).end("steps")
    found = read(attempts=[attempt], train={"global_batch_size": 64})
    assert "rows 15-15 30 31" in found.text
    assert "and 48 groups more" in found.text


def test_the_report_is_written_into_the_run_or_elsewhere(tmp_path):
    path = write_run(tmp_path)
    assert write_report(path) == path / "report.html"
    assert write_report(path, tmp_path / "other.html") == tmp_path / "other.html"
    text = (tmp_path / "other.html").read_text(encoding="utf-8")
    assert text == (path / "report.html").read_text(encoding="utf-8")
    assert not list(path.glob("*.tmp"))


def test_half_characters_do_not_keep_the_page_from_being_written(tmp_path):
    path = write_run(tmp_path, samples=[(1, "Once", "half \ud83d a smile")])
    assert "half ? a smile" in write_report(path).read_text(encoding="utf-8")


def test_refusals(tmp_path):
    with pytest.raises(CheckpointError, match="is not a run directory"):
        write_report(tmp_path / "none")
    path = write_run(tmp_path)
    with pytest.raises(ConfigError, match=r"missing/x\.html' cannot be written \(No such file"):
        write_report(path, tmp_path / "missing" / "x.html")
