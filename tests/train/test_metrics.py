import json
import struct

import pytest
from tensorboardX.proto.event_pb2 import Event

from minigpt.train.metrics import JsonlSink, Record, Sink, StepTimer, TensorBoardSink

TRAIN = Record(
    step=3,
    split="train",
    loss=2.5,
    learning_rate=1e-3,
    grad_norm=0.5,
    tokens=96,
    tokens_per_second=1000.0,
    mfu=0.25,
    step_seconds=0.032,
    data_seconds=0.001,
    elapsed_seconds=0.1,
)
VAL = Record(step=3, split="val", loss=2.75)
SAMPLES = [("Once", " upon\na time é"), ("", "text")]


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_events(directory):
    """Events of the only file: each is its length, a checksum, a message and a checksum."""
    (path,) = directory.iterdir()
    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        events.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return events


def test_train_records_have_all_fields(tmp_path):
    sink = JsonlSink(tmp_path, start_step=0)
    sink.write(TRAIN)
    (fields,) = read_lines(tmp_path / "metrics.jsonl")  # flushed before it is closed
    sink.close()
    assert fields == {
        "step": 3,
        "split": "train",
        "loss": 2.5,
        "learning_rate": 1e-3,
        "grad_norm": 0.5,
        "tokens": 96,
        "tokens_per_second": 1000.0,
        "mfu": 0.25,
        "step_seconds": 0.032,
        "data_seconds": 0.001,
        "elapsed_seconds": 0.1,
    }


def test_an_unknown_mfu_is_null_and_val_records_are_short(tmp_path):
    sink = JsonlSink(tmp_path, start_step=0)
    sink.write(Record(step=1, split="train", loss=3.0, tokens=0))
    sink.write(VAL)
    sink.close()
    assert read_lines(tmp_path / "metrics.jsonl") == [
        {"step": 1, "split": "train", "loss": 3.0, "tokens": 0, "mfu": None},
        {"step": 3, "split": "val", "loss": 2.75},
    ]


def test_samples_are_one_line_each(tmp_path):
    sink = JsonlSink(tmp_path, start_step=0)
    sink.write_samples(7, SAMPLES)
    sink.close()
    assert read_lines(tmp_path / "samples.jsonl") == [
        {"step": 7, "prompt": prompt, "text": text} for prompt, text in SAMPLES
    ]
    assert "é" in (tmp_path / "samples.jsonl").read_text(encoding="utf-8")


def test_a_continued_file_is_appended_to(tmp_path):
    for step, start_step in ((1, 0), (2, 1)):
        sink = JsonlSink(tmp_path, start_step=start_step)
        sink.write(Record(step=step, split="val", loss=1.0))
        sink.close()
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1, 2]


def test_samples_with_unusual_line_ends_survive_a_restart(tmp_path):
    text = "a\u2028b\x85c\x0bd\re"
    sink = JsonlSink(tmp_path, start_step=0)
    sink.write_samples(1, [("p", text)])
    sink.close()
    JsonlSink(tmp_path, start_step=1).close()
    line = (tmp_path / "samples.jsonl").read_bytes().decode("utf-8")
    assert json.loads(line) == {"step": 1, "prompt": "p", "text": text}


@pytest.mark.parametrize("cut", range(12))
def test_a_line_that_was_cut_off_is_dropped(tmp_path, cut):
    """Wherever it ends: before the line end (then it is whole), or within a character."""
    path = tmp_path / "samples.jsonl"
    line = json.dumps({"step": 1, "prompt": "", "text": "\U0001f600"}, ensure_ascii=False) + "\n"
    path.write_bytes(line.encode()[: len(line.encode()) - cut])
    sink = JsonlSink(tmp_path, start_step=1)
    sink.write_samples(2, [("", "new")])
    sink.close()
    expected = ["\U0001f600", "new"] if cut < 2 else ["new"]
    assert [fields["text"] for fields in read_lines(path)] == expected


def test_tensorboard_events_can_be_read_back(tmp_path):
    sink = TensorBoardSink(tmp_path / "tensorboard", start_step=0)
    sink.write(TRAIN)
    sink.write(VAL)
    sink.write_samples(3, SAMPLES)
    sink.close()
    values = [
        (e.step, value) for e in read_events(tmp_path / "tensorboard") for value in e.summary.value
    ]
    assert {step for step, _ in values} == {3}
    scalars = {v.tag: v.simple_value for _, v in values if v.WhichOneof("value") == "simple_value"}
    assert scalars == pytest.approx(
        {
            "loss/train": 2.5,
            "loss/val": 2.75,
            "train/learning_rate": 1e-3,
            "train/grad_norm": 0.5,
            "train/tokens_per_second": 1000.0,
            "train/mfu": 0.25,
            "train/step_seconds": 0.032,
        }
    )
    (text,) = [v for _, v in values if v.WhichOneof("value") == "tensor"]
    assert text.tag.startswith("samples")
    assert "**Once** upon\na time é" in text.tensor.string_val[0].decode("utf-8")


def test_tensorboard_drops_later_events_of_a_run_that_continues(tmp_path):
    sink = TensorBoardSink(tmp_path / "tensorboard", start_step=10)
    sink.write(VAL)
    sink.close()
    starts = [
        event.step
        for event in read_events(tmp_path / "tensorboard")
        if event.session_log.status == event.session_log.START
    ]
    assert starts == [11]


def test_sinks_are_sinks(tmp_path):
    for sink in (JsonlSink(tmp_path, start_step=0), TensorBoardSink(tmp_path / "t", start_step=0)):
        assert isinstance(sink, Sink)
        sink.close()


def test_rates_are_means_over_the_steps():
    timer = StepTimer()
    timer.add(seconds=1.0, waited=0.25, tokens=100)
    timer.add(seconds=3.0, waited=0.75, tokens=300)
    assert timer.rates(flops_per_token=50, peak_flops=10_000.0) == {
        "tokens_per_second": 100.0,
        "mfu": 0.5,
        "step_seconds": 2.0,
        "data_seconds": 0.5,
    }
    assert timer.rates(flops_per_token=50, peak_flops=None)["mfu"] is None
