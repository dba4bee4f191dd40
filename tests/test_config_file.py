import dataclasses
import re
import typing
from collections import Counter

import pytest
import yaml

from minigpt.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RunConfig,
    TrainConfig,
)
from minigpt.config_file import config_from_mapping, config_to_yaml, load_config, read_yaml
from minigpt.errors import ConfigError

OTHER = Config(
    run=RunConfig(name="other", directory="elsewhere", resume="must"),
    data=DataConfig(path="a b: ü.txt", tokenizer="byte", max_stories=9, shuffle=False),
    model=ModelConfig(num_layers=1, mlp_dim=33, dropout=0.25, tie_embeddings=False),
    optimizer=OptimizerConfig(learning_rate=1e-5, min_learning_rate=1e-7, schedule="linear"),
    train=TrainConfig(seed=2**32 - 1, target_loss=0.1, peak_flops=312e12),
    parallel=ParallelConfig(microbatches=8, remat="layer"),
    checkpoint=CheckpointConfig(every=0, keep=1),
)

FIELDS = {
    group.name: [field.name for field in dataclasses.fields(hint)]
    for group in dataclasses.fields(Config)
    for hint in [typing.get_type_hints(Config)[group.name]]
}


def from_text(text, base=None):
    return config_from_mapping(yaml.safe_load(text), base=base or Config(), source="some.yaml")


def refusal(text):
    with pytest.raises(ConfigError) as caught:
        from_text(text)
    message = str(caught.value)
    assert message.startswith("some.yaml: ")
    return message.removeprefix("some.yaml: ")


@pytest.mark.parametrize("config", [Config(), OTHER])
def test_round_trip(config):
    text = config_to_yaml(config)
    assert from_text(text) == config
    assert from_text(text, base=OTHER) == config


def test_extra_keys_come_first_and_the_order_is_that_of_the_fields():
    loaded = yaml.safe_load(config_to_yaml(OTHER, minigpt_version="1.2", files=[["a", "b"]]))
    assert list(loaded) == ["minigpt_version", "files", *FIELDS]
    assert loaded["minigpt_version"] == "1.2"
    assert loaded["files"] == [["a", "b"]]
    assert {group: list(loaded[group]) for group in FIELDS} == FIELDS


def test_only_the_named_fields_change():
    config = from_text("model: {num_layers: 7}\ntrain: {steps: 5}", base=OTHER)
    assert config.model == dataclasses.replace(OTHER.model, num_layers=7)
    assert config.train == dataclasses.replace(OTHER.train, steps=5)
    assert config == dataclasses.replace(OTHER, model=config.model, train=config.train)


def test_fields_that_only_work_together_are_read_together():
    config = from_text(
        "parallel: {microbatches: 3}\ntrain: {global_batch_size: 9}\n"
        "model: {num_heads: 3, embed_dim: 96}"
    )
    assert (config.parallel.microbatches, config.model.head_dim) == (3, 32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("modle: {num_layers: 3}", "unknown field 'modle'; did you mean 'model'?"),
        ("optimiser: {}", "unknown field 'optimiser'; did you mean 'optimizer'?"),
        (
            "model: {num_layer: 3}",
            "unknown field 'model.num_layer'; did you mean 'model.num_layers'?",
        ),
        ("train: {step: 3}", "unknown field 'train.step'; did you mean 'train.steps'?"),
        (
            "train: {learning_rat: 1.0}",
            "unknown field 'train.learning_rat'; did you mean 'optimizer.learning_rate'?",
        ),
        ("num_layer: 3", "unknown field 'num_layer'; did you mean 'model.num_layers'?"),
        (
            "parallel: {zzz: 3}",
            "unknown field 'parallel.zzz'; valid here: pipe, data, model, sequence, microbatches, "
            "schedule, interleave, zero, remat",
        ),
        ("zzz: 3", f"unknown field 'zzz'; valid here: {', '.join(FIELDS)}"),
    ],
)
def test_an_unknown_field_leads_to_the_nearest_valid_one(text, expected):
    assert refusal(text) == expected


def test_a_field_in_the_wrong_group_leads_to_its_own():
    times = Counter(name for names in FIELDS.values() for name in names)
    for home, names in FIELDS.items():
        for name in names:
            if times[name] > 1 or name in FIELDS:
                continue
            for wrong in FIELDS.keys() - {home}:
                expected = f"unknown field '{wrong}.{name}'; did you mean '{home}.{name}'?"
                assert refusal(f"{wrong}: {{{name}: 1}}") == expected
            expected = f"unknown field '{name}'; did you mean '{home}.{name}'?"
            assert refusal(f"{name}: 1") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "model: {num_layers: many}",
            "'model.num_layers' must be a whole number, got 'many' (str)",
        ),
        ("model: {num_layers: '4'}", "'model.num_layers' must be a whole number, got '4' (str)"),
        ("model: {num_layers: 4.0}", "'model.num_layers' must be a whole number, got 4.0 (float)"),
        ("model: {num_layers: true}", "'model.num_layers' must be a whole number, got True (bool)"),
        ("model: {num_layers: null}", "'model.num_layers' must be a whole number, got None"),
        ("model: {num_layers: [4]}", "'model.num_layers' must be a whole number, got [4] (list)"),
        ("model: {mlp_dim: 4.5}", "'model.mlp_dim' must be a whole number or null, got 4.5"),
        ("model: {dropout: true}", "'model.dropout' must be a number, got True (bool)"),
        ("model: {dropout: some}", "'model.dropout' must be a number, got 'some' (str)"),
        ("model: {dropout: null}", "'model.dropout' must be a number, got None"),
        ("train: {target_loss: low}", "'train.target_loss' must be a number or null, got 'low'"),
        ("data: {shuffle: 1}", "'data.shuffle' must be true or false, got 1 (int)"),
        ("data: {shuffle: 'no'}", "'data.shuffle' must be true or false, got 'no' (str)"),
        ("data: {shuffle: null}", "'data.shuffle' must be true or false, got None"),
        ("data: {path: 3}", "'data.path' must be text or null, got 3 (int)"),
        ("data: {path: [a, b]}", "'data.path' must be text or null, got ['a', 'b'] (list)"),
        ("run: {name: 2024}", "'run.name' must be text, got 2024 (int)"),
        ("run: {name: null}", "'run.name' must be text, got None"),
        ("data: {tokenizer: 1}", "'data.tokenizer' must be gpt2 | byte, got 1 (int)"),
        ("data: {tokenizer: null}", "'data.tokenizer' must be gpt2 | byte, got None"),
        (
            "data: {tokenizer: gpt-2}",
            "'data.tokenizer' must be gpt2 | byte, got 'gpt-2' (str); "
            "did you mean data.tokenizer: gpt2?",
        ),
        (
            "optimizer: {schedule: cosin}",
            "'optimizer.schedule' must be cosine | linear | constant, got 'cosin' (str); "
            "did you mean optimizer.schedule: cosine?",
        ),
        ("model: [num_layers, 3]", "'model' is a group of fields, got ['num_layers', 3]: put"),
        ("model: 3", "'model' is a group of fields, got 3: put num_layers, num_heads,"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(text, expected):
    assert refusal(text).startswith(expected)


@pytest.mark.parametrize("number", ["1e-3", "1.0e-3", "0.001", "'0.001'", "+1E-3"])
def test_numbers_that_yaml_takes_for_text(number):
    config = from_text(f"optimizer: {{learning_rate: {number}}}")
    assert config.optimizer.learning_rate == 1e-3


def test_a_whole_number_is_a_number():
    config = from_text("optimizer: {learning_rate: 1}\ntrain: {target_loss: 2e0, peak_flops: 1e12}")
    values = (config.optimizer.learning_rate, config.train.target_loss, config.train.peak_flops)
    assert values == (1.0, 2.0, 1e12)
    assert all(type(value) is float for value in values)


def test_null_where_it_is_allowed():
    config = from_text("data: {path: null, max_stories: ~}\nmodel: {mlp_dim: null}", base=OTHER)
    assert (config.data.path, config.data.max_stories, config.model.mlp_dim) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: {num_heads: 3}", "model.num_heads must divide model.embed_dim: 128"),
        ("parallel: {microbatches: 3}", "parallel.microbatches must divide"),
        (
            "optimizer: {learning_rate: nan}",
            "optimizer.learning_rate must be above 0 and finite, got nan",
        ),
        ("optimizer: {clip_norm: .inf}", "optimizer.clip_norm must be finite, got inf"),
    ],
)
def test_a_broken_rule_names_the_file(text, expected):
    assert refusal(text).startswith(expected)


def test_a_number_too_large_for_a_float_is_refused():
    assert refusal(f"train: {{peak_flops: {10**400}}}").startswith("'train.peak_flops' must be a")


def test_an_empty_file_changes_nothing(tmp_path):
    file = tmp_path / "empty.yaml"
    for text in ("", "\n\n", "# only a comment\n", "---\n", "{}"):
        file.write_text(text)
        assert load_config(file) == Config()
        assert load_config(file, base=OTHER) == OTHER


def test_files_are_layered(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("model: {num_layers: 2, num_heads: 8}\ntrain: {steps: 7}")
    second.write_text("model: {num_layers: 3}\nrun: {name: layered}")
    config = load_config(second, base=load_config(first))
    assert (config.model.num_layers, config.model.num_heads) == (3, 8)
    assert (config.train.steps, config.run.name) == (7, "layered")
    assert config == Config(
        model=ModelConfig(num_layers=3, num_heads=8),
        train=TrainConfig(steps=7),
        run=RunConfig(name="layered"),
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"model: [", "is not YAML"),
        (b"model: {num_layers: 3", "is not YAML"),
        (b"model:\n\tnum_layers: 3", "is not YAML"),
        (b"a\0b", "is not YAML"),
        (b"run: {name: 2024-13-45}", "is not YAML: month must be in 1..12"),
        (b"run: !!python/name:os.system", "is not YAML"),
        (b"\xff\xfe\x00\x01", "cannot be read"),
        (b"\x89PNG\r\n\x1a\n", "cannot be read"),
        (b"- model\n- train", "must hold groups such as 'model:'"),
        (b"just some words", "must hold groups such as 'model:'"),
        (b"3", "must hold groups such as 'model:'"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path, content, expected):
    file = tmp_path / "bad.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(f"configuration file '{file}' {expected}")):
        read_yaml(file)
    with pytest.raises(ConfigError):
        load_config(file)


def test_a_file_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match=re.escape(f"'{path}' cannot be read")):
            load_config(path)


def test_errors_name_the_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("modle: {}")
    with pytest.raises(ConfigError, match=re.escape(f"{file}: unknown field 'modle'")):
        load_config(file)


def test_a_key_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("train: {steps: 5}\nmodel: {num_layers: 2}\ntrain: {seed: 1}\n")
    with pytest.raises(ConfigError, match="key 'train' stands twice"):
        load_config(path)


def test_a_group_without_fields_changes_nothing(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("model:\n  # num_layers: 2\n")
    assert load_config(path) == Config()
