import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tiny import tiny_config

from minigpt import cli
from minigpt.errors import ConfigError
from minigpt.train.metrics import Sink
from minigpt.train.record import Record
from minigpt.train.wandb_sink import WandbSink, load_wandb


@pytest.fixture
def wandb(monkeypatch):
    """A package that keeps what it is told."""
    told = []

    def init(**options):
        told.append(("init", options))
        return SimpleNamespace(
            define_metric=lambda name, **options: told.append(("define", name, options)),
            log=lambda values: told.append(("log", values)),
            finish=lambda: told.append(("finish",)),
        )

    table = lambda columns, data: ("table", columns, data)  # noqa: E731
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Table=table))
    return told


@pytest.fixture
def missing(monkeypatch):
    """No such package, whatever is installed."""
    find = importlib.import_module

    def import_module(name):
        if name == "wandb":
            raise ModuleNotFoundError("No module named 'wandb'")
        return find(name)

    monkeypatch.setattr(importlib, "import_module", import_module)


def test_records_and_samples_are_sent(wandb, tmp_path):
    config = tiny_config(tmp_path, run={"wandb_project": "stories"})
    sink = WandbSink(tmp_path, config)
    assert isinstance(sink, Sink)
    sink.write(Record(step=3, split="train", loss=2.5, grad_norm=0.5))
    sink.write(Record(step=3, split="val", loss=2.75, tokens=96))
    sink.write_samples(3, [("Once", " upon"), ("", "text")])
    sink.close()
    (_, options), define, *rest = wandb
    assert (options["project"], options["name"], options["resume"]) == ("stories", "tiny", "allow")
    assert options["config"]["model"]["embed_dim"] == 16
    assert options["dir"] == str(tmp_path)
    assert define == ("define", "*", {"step_metric": "step"})
    assert rest == [
        ("log", {"step": 3, "train/loss": 2.5, "train/grad_norm": 0.5}),
        ("log", {"step": 3, "val/loss": 2.75, "val/tokens": 96}),
        (
            "log",
            {
                "step": 3,
                "samples": ("table", ["prompt", "text"], [["Once", " upon"], ["", "text"]]),
            },
        ),
        ("finish",),
    ]


def test_a_run_that_continues_is_the_same_run_there(wandb, tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    config = tiny_config(tmp_path, run={"wandb_project": "stories"})
    for folder in (*folders, folders[0]):
        WandbSink(folder, config)
    first, other, again = [told[1]["id"] for told in wandb if told[0] == "init"]
    assert first == again != other


@pytest.mark.usefixtures("missing")
def test_a_missing_package_is_refused_with_the_remedy():
    with pytest.raises(ConfigError) as refused:
        load_wandb("stories")
    for fragment in ("run.wandb_project is 'stories'", "--extra wandb", "minigpt[wandb]"):
        assert fragment in str(refused.value)


@pytest.mark.usefixtures("missing")
def test_train_refuses_before_any_work(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--run.wandb-project", "stories"]) == 2
    assert "the package wandb is not installed" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_it_is_not_imported_unless_it_is_asked_for():
    code = "import sys, minigpt.launch.training; assert 'wandb' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_training_sends_what_it_records(wandb, tmp_path):
    from minigpt.launch.local import train
    from minigpt.train.console import make_console

    train(
        tiny_config(
            tmp_path,
            run={"wandb_project": "stories"},
            train={"steps": 2, "eval_every": 2, "sample_every": 2},
        ),
        make_console(),
    )
    logged = [told[1] for told in wandb if told[0] == "log"]
    assert [values["step"] for values in logged if "train/loss" in values] == [1, 2]
    assert [values["step"] for values in logged if "val/loss" in values] == [0, 2]
    assert [values["step"] for values in logged if "samples" in values] == [0, 2]
    assert wandb[-1] == ("finish",)
