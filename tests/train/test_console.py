import re
from io import StringIO

import pytest
from rich.console import Console

from minigpt.train.console import ConsoleSink, byte_progress, format_seconds
from minigpt.train.metrics import Record

ESCAPE = "\x1b"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def console_of(*, terminal=False, width=120):
    return Console(
        force_terminal=terminal, file=StringIO(), soft_wrap=True, width=width, highlight=False
    )


def train_record(step, **fields):
    values = {
        "loss": 2.34567,
        "learning_rate": 3e-4,
        "grad_norm": 0.5,
        "tokens_per_second": 12345.6,
        "elapsed_seconds": 2.0 * step,
    }
    return Record(step=step, split="train", **values | fields)


def shown(records, *, terminal=False, start_step=0):
    """What a sink printed."""
    console = console_of(terminal=terminal)
    sink = ConsoleSink(console, steps=100, start_step=start_step)
    for record in records:
        sink.write(record)
    sink.close()
    return console.file.getvalue()


def sample(prompt, text, *, terminal=False):
    console = console_of(terminal=terminal)
    sink = ConsoleSink(console, steps=100, start_step=0)
    sink.write_samples(5, [(prompt, text)])
    sink.close()
    return console.file.getvalue()


def test_plain_lines_without_a_terminal():
    output = shown([train_record(10), train_record(20), Record(step=20, split="val", loss=2.5)])
    assert ESCAPE not in output
    assert "\r" not in output
    numbers = "loss 2.3457  lr 3.00e-04  grad 0.50  12,346 tok/s  MFU n/a"
    assert output.splitlines() == [
        f"step    10/100  {numbers}  ETA -",
        f"step    20/100  {numbers}  ETA 2:40",
        "step    20  validation loss 2.5000",
    ]


def test_a_known_mfu_is_in_percent():
    assert "MFU 41.2 %" in shown([train_record(1, mfu=0.4123)])


def test_unknown_fields_are_left_out():
    output = shown([Record(step=1, split="train", loss=2.0)])
    assert output == "step     1/100  loss 2.0000  MFU n/a  ETA -\n"


def test_long_lines_are_not_broken():
    console = console_of(width=20)
    ConsoleSink(console, steps=100, start_step=0).write(train_record(1))
    assert console.file.getvalue().count("\n") == 1


def test_the_pace_before_this_process_does_not_count():
    """50 steps took 1000 s there, here one takes 2 s."""
    records = [train_record(step, elapsed_seconds=900.0 + 2 * step) for step in (51, 60)]
    assert shown(records, start_step=50).splitlines()[1].endswith("ETA 1:20")


def test_a_bar_on_a_terminal():
    output = shown([train_record(step, mfu=0.5) for step in (10, 20)], terminal=True)
    assert ESCAPE in output
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    assert "step 20/100" in text
    assert "━" in text
    assert "loss 2.3457" in text
    assert "12,346 tok/s" in text
    assert "MFU 50.0 %" in text
    assert "ETA" in text
    assert "\x1b[?25h" in output  # the cursor is back


def test_validation_and_samples_are_lines_above_the_bar():
    output = shown([train_record(1), Record(step=1, split="val", loss=2.5)], terminal=True)
    assert "step     1  validation loss 2.5000\n" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)


@pytest.mark.parametrize(
    "text", ["[bold] and [/bold]", "[/]", ":smile: :heart:", "\\[red]", "ends in \\", "[link=x]"]
)
@pytest.mark.parametrize("terminal", [False, True])
def test_samples_are_printed_literally(text, terminal):
    for prompt, continuation in ((text, " end"), ("start ", text), ("a\\", text)):
        output = sample(prompt, continuation, terminal=terminal)
        output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
        assert "sample after step 5:\n    " + prompt + continuation + "\n" in output


def test_prompts_are_bold_and_lines_indented():
    assert sample("One\ntwo", " three\nfour") == (
        "sample after step 5:\n    One\n    two three\n    four\n"
    )
    assert "\x1b[1mOnce\x1b[0m upon" in sample("Once", " upon", terminal=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (123, "2:03"), (3599.5, "1:00:00"), (3723, "1:02:03")],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_progress_in_bytes_prints_a_line_for_each_tenth():
    console = console_of()
    show = byte_progress(console, "tokenising")
    for done in range(0, 5_000_001, 10_000):
        show(done, 5_000_000)
    lines = console.file.getvalue().splitlines()
    assert [int(re.search(r"\((\d+) %\)", line)[1]) for line in lines] == list(range(0, 101, 10))
    assert lines[5] == "tokenising: 2.5 of 5.0 MB (50 %)"
    assert ESCAPE not in console.file.getvalue()


def test_progress_in_bytes_rewrites_one_line_on_a_terminal():
    console = console_of(terminal=True)
    show = byte_progress(console, "tokenising")
    for done in range(0, 5_000_001, 10_000):
        show(done, 5_000_000)
    output = console.file.getvalue()
    assert output.count("\r") == 100
    assert output.count("\n") == 1
    assert output.endswith("5.0 of 5.0 MB (100 %)\n")


def test_progress_over_nothing_is_complete():
    console = console_of()
    byte_progress(console, "tokenising")(0, 0)
    assert console.file.getvalue() == "tokenising: 0.0 of 0.0 MB (100 %)\n"
