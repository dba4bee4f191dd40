import dataclasses
import re
import shutil

import pytest
import yaml

from minigpt import __version__
from minigpt.config import (
    CheckpointConfig,
    ClusterConfig,
    Config,
    ModelConfig,
    ParallelConfig,
    RunConfig,
)
from minigpt.data.corpus import open_corpus
from minigpt.errors import CheckpointError, ConfigError
from minigpt.train.run_directory import RunDirectory

BUILTIN = {"builtin": "0123456789abcdef", "seed": 0, "num_stories": 100}


def change(config, **fields):
    for name, value in fields.items():
        group, _, field = name.partition("__")
        new = dataclasses.replace(getattr(config, group), **{field: value})
        config = dataclasses.replace(config, **{group: new})
    return config


def identity(path, max_stories=None):
    return open_corpus(str(path), max_stories).identity()


def started(config, data):
    directory = RunDirectory.of(config)
    directory.write_config(config, data)
    (directory.checkpoints / "10").mkdir(parents=True, exist_ok=True)
    return directory


def refusal(directory, config, data):
    with pytest.raises(ConfigError) as caught:
        directory.check_resume(config, data)
    first, *changes, last = str(caught.value).splitlines()
    assert first == f"{str(directory.path)!r} belongs to another run; these differ:"
    assert last == "choose another run.name for a new run, or use the same values to continue"
    return [change.removeprefix("  ") for change in changes]


@pytest.fixture
def config(tmp_path):
    return Config(run=RunConfig(name="mine", directory=str(tmp_path / "runs")))


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    (folder / "b.txt").write_text("two")
    return folder


def test_paths(tmp_path, config):
    directory = RunDirectory.of(config)
    assert directory.path == tmp_path / "runs" / "mine"
    assert directory.config_file == directory.path / "config.yaml"
    assert directory.checkpoints == directory.path / "checkpoints"
    assert directory.tensorboard == directory.path / "tensorboard"
    assert not directory.path.exists()


@pytest.mark.parametrize("builtin", [True, False])
def test_what_is_written_is_read(config, texts, builtin):
    data = BUILTIN if builtin else identity(texts, 7)
    config = change(config, model__num_layers=2, data__path=str(texts), train__target_loss=1.5)
    directory = RunDirectory.of(config)
    directory.write_config(config, data)
    assert directory.read_config() == (config, data)
    assert yaml.safe_load(directory.config_file.read_text())["minigpt_version"] == __version__
    assert [file.name for file in directory.path.iterdir()] == ["config.yaml"]


def test_writing_again_replaces(config):
    directory = RunDirectory.of(config)
    directory.write_config(config, BUILTIN)
    longer = change(config, train__steps=999)
    directory.write_config(longer, BUILTIN)
    assert directory.read_config() == (longer, BUILTIN)


def test_a_folder_that_is_no_run(config):
    directory = RunDirectory.of(config)
    with pytest.raises(CheckpointError, match=r"mine' is not a run directory$"):
        directory.read_config()
    for name in ("second", "first"):
        RunDirectory(directory.path.parent / name).write_config(config, BUILTIN)
    with pytest.raises(
        CheckpointError, match=r"mine' is not a run directory; runs there: first, second$"
    ):
        directory.read_config()


def test_a_damaged_config_names_the_file(config):
    directory = RunDirectory.of(config)
    directory.write_config(config, BUILTIN)
    directory.config_file.write_text("modle: {}")
    with pytest.raises(ConfigError, match=re.escape(f"{directory.config_file}: unknown field")):
        directory.read_config()


def test_checkpoints_are_folders_named_by_a_step(config):
    directory = RunDirectory.of(config)
    assert directory.newest_step() is None
    directory.checkpoints.mkdir(parents=True)
    assert directory.newest_step() is None
    (directory.checkpoints / "30.orbax-checkpoint-tmp").mkdir()
    assert directory.newest_step() is None
    (directory.checkpoints / "9").mkdir()
    (directory.checkpoints / "10").mkdir()
    assert directory.newest_step() == 10


@pytest.mark.parametrize("resume", ["auto", "never"])
@pytest.mark.parametrize("written", [False, True])
def test_without_checkpoints_the_run_is_new(config, resume, written):
    config = change(config, run__resume=resume)
    directory = RunDirectory.of(config)
    if written:
        directory.write_config(change(config, model__num_layers=9), BUILTIN)
    assert directory.check_resume(config, BUILTIN) is False


def test_must_needs_a_checkpoint(config):
    config = change(config, run__resume="must")
    directory = RunDirectory.of(config)
    with pytest.raises(ConfigError) as caught:
        directory.check_resume(config, BUILTIN)
    for fragment in ("run.resume is 'must'", str(directory.path), "run.name", "auto"):
        assert fragment in str(caught.value)
    started(config, BUILTIN)
    assert directory.check_resume(config, BUILTIN) is True


def test_never_keeps_what_is_there(config):
    config = change(config, run__resume="never")
    directory = started(config, BUILTIN)
    with pytest.raises(ConfigError) as caught:
        directory.check_resume(config, BUILTIN)
    for fragment in ("run.resume is 'never'", str(directory.path), "not overwritten", "run.name"):
        assert fragment in str(caught.value)


def test_the_same_run_continues(config, texts):
    directory = started(config, BUILTIN)
    assert directory.check_resume(config, BUILTIN) is True
    started(change(config, data__path=str(texts)), identity(texts))
    assert directory.check_resume(change(config, data__path=str(texts)), identity(texts)) is True


def test_checkpoints_without_a_configuration_are_not_overwritten(config):
    directory = started(config, BUILTIN)
    directory.config_file.unlink()
    with pytest.raises(CheckpointError, match="not a run directory"):
        directory.check_resume(config, BUILTIN)


@pytest.mark.parametrize(
    ("field", "value", "old"),
    [
        ("model.num_layers", 5, 4),
        ("model.mlp_dim", 100, None),
        ("model.seq_length", 128, 64),
        ("model.dropout", 0.1, 0.0),
        ("model.tie_embeddings", False, True),
        ("optimizer.learning_rate", 0.5, 0.002),
        ("optimizer.schedule", "linear", "cosine"),
        ("optimizer.warmup_steps", 0, 20),
        ("train.seed", 1, 0),
        ("train.global_batch_size", 16, 8),
        ("train.compute_dtype", "bfloat16", "float32"),
        ("data.tokenizer", "byte", "gpt2"),
        ("data.layout", "padded", "packed"),
        ("data.shuffle", False, True),
        ("data.val_fraction", 0.1, 0.02),
    ],
)
def test_a_change_of_what_is_learned_is_refused(config, field, value, old):
    directory = started(config, BUILTIN)
    changed = change(config, **{field.replace(".", "__"): value})
    assert refusal(directory, changed, BUILTIN) == [f"{field}: {old} there, {value} here"]


def test_every_change_is_named(config, texts):
    directory = started(config, BUILTIN)
    changed = change(config, model__num_layers=5, train__seed=7, optimizer__beta2=0.99)
    assert sorted(refusal(directory, changed, identity(texts))) == [
        "data: the built-in corpus (100 stories, generator 01234567) there, "
        "files a.txt, b.txt here",
        "model.num_layers: 4 there, 5 here",
        "optimizer.beta2: 0.95 there, 0.99 here",
        "train.seed: 0 there, 7 here",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"train__steps": 900},
        {"train__steps": 1},
        {"train__log_every": 1, "train__eval_every": 7, "train__eval_rows": 0},
        {"train__sample_every": 0, "train__target_loss": 1.0, "train__peak_flops": 1e12},
        {"parallel__microbatches": 4},
        {"parallel__remat": "layer"},
        {"checkpoint__every": 5, "checkpoint__keep": 1},
        {"run__resume": "must"},
        {"data__path": "elsewhere.txt", "data__max_stories": 5},
    ],
)
def test_a_change_of_anything_else_is_fine(config, fields):
    directory = started(config, BUILTIN)
    assert directory.check_resume(change(config, **fields), BUILTIN) is True


def test_every_field_is_either_free_or_bound(config):
    """A field added later must be sorted into one of the two tests above."""
    bound = {
        *(f"model.{field.name}" for field in dataclasses.fields(ModelConfig)),
        *(f"optimizer.{field.name}" for field in dataclasses.fields(config.optimizer)),
        *("data.tokenizer", "data.val_fraction", "data.shuffle", "data.layout"),
        *("train.global_batch_size", "train.seed", "train.compute_dtype"),
    }
    free = {
        *(f"run.{field.name}" for field in dataclasses.fields(RunConfig)),
        *(f"parallel.{field.name}" for field in dataclasses.fields(ParallelConfig)),
        *(f"checkpoint.{field.name}" for field in dataclasses.fields(CheckpointConfig)),
        *(f"cluster.{field.name}" for field in dataclasses.fields(ClusterConfig)),
        *("data.path", "data.max_stories"),
        *("train.steps", "train.log_every", "train.eval_every", "train.eval_rows"),
        *("train.sample_every", "train.target_loss", "train.peak_flops"),
    }
    every = {
        f"{group.name}.{field.name}"
        for group in dataclasses.fields(config)
        for field in dataclasses.fields(getattr(config, group.name))
    }
    assert every == bound | free


def test_the_same_files_elsewhere_continue(config, texts, tmp_path):
    directory = started(change(config, data__path=str(texts)), identity(texts))
    moved = tmp_path / "moved" / "here"
    shutil.copytree(texts, moved)
    shutil.rmtree(texts)
    assert directory.check_resume(change(config, data__path=str(moved)), identity(moved)) is True
    pattern = str(moved / "*.txt")
    assert directory.check_resume(change(config, data__path=pattern), identity(pattern)) is True


def test_other_files_are_named(config, texts):
    directory = started(config, identity(texts))
    (texts / "a.txt").write_text("changed")
    assert refusal(directory, config, identity(texts)) == ["data file a.txt: its content changed"]

    (texts / "a.txt").write_text("one")
    (texts / "c.txt").write_text("three")
    assert refusal(directory, config, identity(texts)) == ["data file c.txt: new here"]

    (texts / "c.txt").unlink()
    (texts / "b.txt").unlink()
    assert refusal(directory, config, identity(texts)) == [
        "data file b.txt: used there, missing here"
    ]

    (texts / "new.txt").write_text("two")
    assert sorted(refusal(directory, config, identity(texts))) == [
        "data file b.txt: used there, missing here",
        "data file new.txt: new here",
    ]


def test_files_of_the_same_name_are_told_apart(config, tmp_path):
    texts = tmp_path / "texts"
    for language in ("de", "en"):
        (texts / language).mkdir(parents=True)
        (texts / language / "part.txt").write_text(language)
    directory = started(config, identity(texts))
    assert directory.check_resume(config, identity(texts)) is True

    for language in ("de", "en"):
        file = texts / language / "part.txt"
        file.write_text("changed")
        changes = refusal(directory, config, identity(texts))
        assert changes == ["data file part.txt: its content changed"]
        file.write_text(language)

    (texts / "de" / "part.txt").unlink()
    assert refusal(directory, config, identity(texts)) == [
        "data file part.txt: its content changed"
    ]


def test_the_order_of_files_matters(config, texts, tmp_path):
    directory = started(config, identity(texts))
    other = tmp_path / "other"
    for folder, name in (("1", "b.txt"), ("2", "a.txt")):
        (other / folder).mkdir(parents=True)
        shutil.copy(texts / name, other / folder)
    assert refusal(directory, config, identity(other)) == [
        "data files: in the order a.txt, b.txt there, b.txt, a.txt here"
    ]


def test_reading_fewer_stories_is_named(config, texts):
    directory = started(config, identity(texts))
    assert refusal(directory, config, identity(texts, 1)) == [
        "data.max_stories: None there, 1 here"
    ]
    directory = started(config, BUILTIN)
    assert refusal(directory, config, {**BUILTIN, "num_stories": 5}) == [
        "data: the built-in corpus (100 stories, generator 01234567) there, "
        "the built-in corpus (5 stories, generator 01234567) here"
    ]


def test_the_built_in_corpus_instead_of_files(config, texts):
    directory = started(change(config, data__path=str(texts)), identity(texts))
    assert refusal(directory, config, BUILTIN) == [
        "data: files a.txt, b.txt there, the built-in corpus (100 stories, generator 01234567) here"
    ]


def test_the_real_built_in_corpus_is_equal_to_itself(config):
    data = open_corpus(None, 50).identity()
    directory = started(config, data)
    assert directory.check_resume(config, open_corpus(None, 50).identity()) is True
    assert len(refusal(directory, config, open_corpus(None, 51).identity())) == 1
