import dataclasses
import math
import types
import typing

import pytest

from minigpt.config import (
    CheckpointConfig,
    ClusterConfig,
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RunConfig,
    TrainConfig,
)
from minigpt.config_file import differences, flatten
from minigpt.config_rules import nearest_divisor
from minigpt.errors import ConfigError, MiniGPTError

GROUPS = {
    "run": RunConfig,
    "data": DataConfig,
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "train": TrainConfig,
    "parallel": ParallelConfig,
    "checkpoint": CheckpointConfig,
    "cluster": ClusterConfig,
}

# Field, a value that is refused, and what the message says besides the field and the value.
REFUSED = [
    ("run.name", "", ["plain folder name", "'mini'", "run.directory"]),
    ("run.name", "a/b", ["plain folder name", "'mini'", "run.directory"]),
    ("run.name", "/runs", ["plain folder name"]),
    ("run.name", ".tokens", ["does not start with a dot"]),
    ("run.name", "..", ["does not start with a dot"]),
    ("data.max_stories", 0, ["at least 1", "use 1 or more"]),
    ("data.max_stories", -5, ["at least 1", "use 1 or more"]),
    ("data.val_fraction", -0.1, ["at least 0 and below 1"]),
    ("data.val_fraction", 1.0, ["at least 0 and below 1"]),
    ("data.val_fraction", math.nan, ["at least 0 and below 1"]),
    ("model.num_layers", 0, ["at least 1", "use 1 or more"]),
    ("model.num_heads", 0, ["at least 1", "use 1 or more"]),
    ("model.embed_dim", 0, ["at least 1", "use 1 or more"]),
    ("model.embed_dim", -128, ["at least 1", "use 1 or more"]),
    ("model.mlp_dim", 0, ["at least 1", "use 1 or more"]),
    ("model.seq_length", 1, ["at least 2", "use 2 or more"]),
    ("model.dropout", 1.0, ["at least 0 and below 1"]),
    ("model.dropout", -0.5, ["at least 0 and below 1"]),
    ("model.num_heads", 3, ["must divide model.embed_dim", "128", "heads that works is 2"]),
    ("model.num_heads", 7, ["must divide model.embed_dim", "128", "heads that works is 8"]),
    ("model.num_heads", 1000, ["must divide model.embed_dim", "heads that works is 128"]),
    ("optimizer.learning_rate", 0.0, ["above 0", "3e-4 to 3e-3"]),
    ("optimizer.learning_rate", -0.001, ["above 0", "3e-4 to 3e-3"]),
    ("optimizer.learning_rate", math.nan, ["above 0", "3e-4 to 3e-3"]),
    ("optimizer.learning_rate", math.inf, ["3e-4 to 3e-3"]),
    ("optimizer.learning_rate", 1e-4, ["optimizer.min_learning_rate", "0.0002", "use 1e-05"]),
    ("optimizer.min_learning_rate", -1.0, ["at least 0", "use 0 or more"]),
    ("optimizer.min_learning_rate", 0.5, ["must not exceed", "0.002", "use 0.0002"]),
    ("optimizer.warmup_steps", -1, ["at least 0", "use 0 or more"]),
    ("optimizer.weight_decay", -0.1, ["at least 0", "use 0 or more"]),
    ("optimizer.weight_decay", math.nan, ["at least 0"]),
    ("optimizer.beta1", 1.0, ["at least 0 and below 1"]),
    ("optimizer.beta1", -0.1, ["at least 0 and below 1"]),
    ("optimizer.beta2", 1.0, ["at least 0 and below 1"]),
    ("optimizer.clip_norm", -1.0, ["at least 0", "use 0 or more"]),
    ("optimizer.clip_norm", math.inf, []),
    ("train.steps", 0, ["at least 1", "use 1 or more"]),
    ("train.global_batch_size", 0, ["at least 1", "use 1 or more"]),
    ("train.log_every", 0, ["at least 1", "use 1 or more"]),
    ("train.seed", -1, ["at least 0", "use 0 or more"]),
    ("train.seed", 2**32, ["below 2**32"]),
    ("train.eval_every", -1, ["at least 0", "use 0 or more"]),
    ("train.eval_rows", -1, ["at least 0", "use 0 or more"]),
    ("train.sample_every", -1, ["at least 0", "use 0 or more"]),
    ("train.target_loss", -0.5, ["at least 0", "use 0 or more"]),
    ("train.target_loss", math.nan, ["at least 0"]),
    ("train.peak_flops", 0.0, ["above 0", "312e12"]),
    ("train.peak_flops", math.nan, ["above 0", "312e12"]),
    ("parallel.pipe", 0, ["at least 1", "use 1 or more"]),
    ("parallel.data", 0, ["at least 1, or -1"]),
    ("parallel.model", 0, ["at least 1", "use 1 or more"]),
    ("parallel.sequence", True, ["needs tensor-parallel", "parallel.model 1", "model 2 or more"]),
    ("parallel.interleave", 0, ["at least 1", "use 1 or more"]),
    ("parallel.interleave", 2, ["needs pipeline stages", "parallel.pipe 2 or more"]),
    ("parallel.microbatches", 0, ["at least 1", "use 1 or more"]),
    ("checkpoint.every", -1, ["at least 0", "use 0 or more"]),
    ("checkpoint.keep", 0, ["at least 1", "use 1 or more"]),
    ("cluster.num_workers", -1, ["at least 0", "use 0 or more"]),
    ("cluster.devices_per_worker", 0, ["at least 1", "use 1 or more"]),
    ("cluster.max_failures", -1, ["at least 0", "use 0 or more"]),
    ("cluster.hang_seconds", -1.0, ["at least 0", "use 0 or more"]),
    ("cluster.address", "auto", ["trains without Ray", "cluster.num_workers"]),
]

ACCEPTED = [
    ("run.name", "tiny-2 layers.v1"),
    ("data.path", "stories.txt"),
    ("data.max_stories", 1),
    ("data.max_stories", None),
    ("data.val_fraction", 0.0),
    ("data.val_fraction", 0.99),
    ("model.num_layers", 1),
    ("model.num_heads", 128),
    ("model.embed_dim", 4),
    ("model.mlp_dim", 1),
    ("model.seq_length", 2),
    ("model.dropout", 0.5),
    ("optimizer.learning_rate", 3e-4),
    ("optimizer.min_learning_rate", 0.0),
    ("optimizer.min_learning_rate", 2e-3),
    ("optimizer.warmup_steps", 0),
    ("optimizer.weight_decay", 0.0),
    ("optimizer.beta1", 0.0),
    ("optimizer.beta2", 0.999),
    ("optimizer.clip_norm", 0.0),
    ("train.steps", 1),
    ("train.global_batch_size", 1),
    ("train.seed", 2**32 - 1),
    ("train.log_every", 1),
    ("train.eval_every", 0),
    ("train.eval_rows", 0),
    ("train.sample_every", 0),
    ("train.target_loss", 0.0),
    ("train.peak_flops", 312e12),
    ("parallel.pipe", 4),
    ("parallel.data", 8),
    ("parallel.data", -1),
    ("parallel.model", 4),
    ("parallel.interleave", 1),
    ("parallel.microbatches", 8),
    ("checkpoint.every", 0),
    ("checkpoint.keep", 1),
    ("cluster.num_workers", 8),
    ("cluster.devices_per_worker", 4),
    ("cluster.max_failures", 0),
    ("cluster.hang_seconds", 0.0),
]


def config_with(**fields):
    groups = {}
    for name, value in fields.items():
        group, _, field = name.partition("__")
        groups.setdefault(group, {})[field] = value
    return Config(**{group: GROUPS[group](**values) for group, values in groups.items()})


def numeric_fields():
    for group, kind in GROUPS.items():
        for name, hint in typing.get_type_hints(kind).items():
            options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            if int in options or float in options:
                yield f"{group}.{name}"


@pytest.mark.parametrize(("field", "value", "fragments"), REFUSED)
def test_refuses_a_value_that_cannot_work(field, value, fragments):
    group, _, name = field.partition(".")
    with pytest.raises(ConfigError) as caught:
        GROUPS[group](**{name: value})
    message = str(caught.value)
    shown = repr(value) if isinstance(value, str) else str(value)
    for fragment in (field, shown, *fragments):
        assert fragment in message


@pytest.mark.parametrize(
    ("parallel", "fragments"),
    [
        ({"pipe": 3}, ["model.num_layers: 4", "3 x 1", "nearest that works is 3 or 6"]),
        ({"pipe": 2, "interleave": 3}, ["model.num_layers: 4", "2 x 3", "works is 6"]),
        ({"data": 3}, ["train.global_batch_size: 8", "3 x 1", "works is 6 or 9"]),
        ({"data": 2, "microbatches": 8}, ["2 x 8", "works is 16"]),
        ({"model": 3}, ["model.num_heads: 4", "nearest that works is 2"]),
    ],
)
def test_a_mesh_must_divide_the_model_and_the_batch(parallel, fragments):
    with pytest.raises(ConfigError) as caught:
        Config(parallel=ParallelConfig(**parallel))
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("length", "model", "works"), [(65, 2, "64 or 66"), (66, 4, "64 or 68"), (3, 4, "4")]
)
def test_peers_divide_the_sequence_only_where_they_are_asked_to(length, model, works):
    fields = {"model__seq_length": length, "parallel__model": model}
    config_with(**fields)
    with pytest.raises(ConfigError) as caught:
        config_with(**fields, parallel__sequence=True)
    assert str(caught.value) == (
        "with parallel.sequence, parallel.model must divide model.seq_length: "
        f"{length} is not divisible by {model}; the nearest sequence length that works is {works}"
    )
    config_with(parallel__model=4, parallel__sequence=True)


def test_every_number_has_a_value_that_is_refused_and_one_that_is_accepted():
    assert set(numeric_fields()) <= {field for field, _, _ in REFUSED}
    assert set(numeric_fields()) <= {field for field, _ in ACCEPTED}


@pytest.mark.parametrize(("field", "value"), ACCEPTED)
def test_accepts_the_edge_of_what_works(field, value):
    group, _, name = field.partition(".")
    config = Config(**{group: GROUPS[group](**{name: value})})
    assert getattr(getattr(config, group), name) == value


@pytest.mark.parametrize(
    ("batch", "microbatches", "works"), [(16, 3, 2), (16, 7, 8), (12, 5, 4), (7, 4, 1), (8, 99, 8)]
)
def test_microbatches_divide_the_batch(batch, microbatches, works):
    with pytest.raises(ConfigError) as caught:
        config_with(train__global_batch_size=batch, parallel__microbatches=microbatches)
    assert str(caught.value) == (
        "parallel.microbatches must divide train.global_batch_size: "
        f"{batch} is not divisible by {microbatches}; "
        f"the nearest number of microbatches that works is {works}"
    )
    config_with(train__global_batch_size=batch, parallel__microbatches=works)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"train__eval_every": 0}, "train.eval_every 0"),
        ({"data__val_fraction": 0.0}, "data.val_fraction 0.0"),
    ],
)
def test_a_target_loss_needs_evaluations(fields, shown):
    with pytest.raises(ConfigError) as caught:
        config_with(train__target_loss=1.5, **fields)
    for fragment in ("train.target_loss", "1.5", shown, "set both above 0"):
        assert fragment in str(caught.value)
    assert config_with(**fields).train.target_loss is None


def test_no_target_loss_without_validation_is_fine():
    config_with(data__val_fraction=0.0, train__eval_every=0)


def test_the_defaults_are_valid():
    config = Config()
    groups = [field.name for field in dataclasses.fields(config)]
    assert {name: type(getattr(config, name)) for name in groups} == GROUPS


@pytest.mark.parametrize("kind", [Config, *GROUPS.values()])
def test_is_frozen_and_takes_names_only(kind):
    group = kind()
    field = dataclasses.fields(group)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(group, field, getattr(group, field))
    with pytest.raises(TypeError):
        kind(getattr(group, field))


def test_a_config_error_is_a_wrong_input():
    assert issubclass(ConfigError, MiniGPTError)
    assert issubclass(ConfigError, ValueError)
    assert ConfigError.exit_code == 2


@pytest.mark.parametrize(
    ("model", "head_dim", "hidden_dim"),
    [
        (ModelConfig(num_heads=4, embed_dim=128), 32, 512),
        (ModelConfig(num_heads=1, embed_dim=7), 7, 28),
        (ModelConfig(num_heads=7, embed_dim=7, mlp_dim=30), 1, 30),
    ],
)
def test_derived_sizes(model, head_dim, hidden_dim):
    assert model.head_dim == head_dim
    assert model.hidden_dim == hidden_dim


@pytest.mark.parametrize(
    ("total", "wanted", "nearest"),
    [(128, 4, 4), (128, 3, 2), (128, 12, 8), (128, 13, 16), (1, 5, 1), (13, 6, 1), (12, 5, 4)],
)
def test_nearest_divisor(total, wanted, nearest):
    assert nearest_divisor(total, wanted) == nearest


def test_differences_are_dotted_with_both_values():
    old = config_with(model__num_layers=2, data__path="a.txt")
    new = config_with(model__num_layers=3, optimizer__beta2=0.99)
    assert differences(old, new) == {
        "data.path": ("a.txt", None),
        "model.num_layers": (2, 3),
        "optimizer.beta2": (0.95, 0.99),
    }
    assert differences(new, old)["model.num_layers"] == (3, 2)
    assert differences(old, old) == {}


def test_flatten():
    assert flatten({"a": 1, "b": {"c": None, "d": {"e": "x"}}, "f": {}}) == {
        "a": 1,
        "b.c": None,
        "b.d.e": "x",
    }


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"pipe": 3}, "3 x -1 x 1 with 2 worker.s. x 4 device.s.; use parallel.data -1"),
        ({"data": 4}, "1 x 4 x 1 with 2 worker.s. x 4 device.s.; .* cluster.num_workers 1"),
        ({"data": 4, "model": 4}, "1 x 4 x 4 with 2 .*cluster.num_workers 4"),
    ],
)
def test_a_mesh_uses_every_device_of_a_cluster(parallel, message):
    sizes = {"model": ModelConfig(num_layers=12), "train": TrainConfig(global_batch_size=16)}
    cluster = ClusterConfig(num_workers=2, devices_per_worker=4)
    with pytest.raises(ConfigError, match=message):
        Config(parallel=ParallelConfig(**parallel), cluster=cluster, **sizes)
    Config(parallel=ParallelConfig(data=2, model=4), cluster=cluster, **sizes)
