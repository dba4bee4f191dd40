"""Recipes load, and those of the topologies are one training on different machines."""

from dataclasses import replace
from pathlib import Path

import pytest

from minigpt.config import Config
from minigpt.config_file import differences, load_config
from minigpt.launch.training import resolve_mesh
from minigpt.parallel.rows import rows_by_process

RECIPES = Path(__file__).parents[1] / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
NODES = ("8x1", "2x4", "1x8")
TWINS = ("cpu-4x1", "cpu-2x2", "cpu-1x4")
SIZES = ("gpt2-medium", "gpt2-large")


def recipe(*names):
    config = Config()
    for name in names:
        config = load_config(RECIPES / f"{name}.yaml", base=config)
    return config


def num_devices(config):
    return config.cluster.num_workers * config.cluster.devices_per_worker


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_loads_and_names_its_run(name):
    assert recipe(name).run.name == name
    assert f"minigpt train --config recipes/{name}.yaml" in (RECIPES / f"{name}.yaml").read_text()


@pytest.mark.parametrize("names", [NODES, TWINS])
def test_topologies_are_one_training(names):
    first, *others = [recipe(name) for name in names]
    for other in others:
        changed = differences(first, other)
        assert {field for field in changed if not field.startswith(("cluster.", "parallel."))} == {
            "run.name"
        }


@pytest.mark.parametrize("name", [*NODES, *TWINS])
def test_a_topology_is_what_its_name_says(name):
    config = recipe(name)
    workers, devices = map(int, name.removeprefix("cpu-").split("x"))
    assert (config.cluster.num_workers, config.cluster.devices_per_worker) == (workers, devices)
    assert config.cluster.platform == ("cpu" if name in TWINS else "cuda")


@pytest.mark.parametrize("names", [(name,) for name in (*NODES, *TWINS)])
def test_a_mesh_uses_all_devices_and_splits_layers_only_within_a_node(names):
    config = recipe(*names)
    shape = resolve_mesh(config, num_devices(config))
    assert shape == (config.parallel.pipe, config.parallel.data, config.parallel.model)
    assert config.cluster.devices_per_worker % config.parallel.model == 0
    rows = rows_by_process(shape, config.cluster.num_workers, config.train.global_batch_size)
    assert len({len(held) for held in rows}) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NODES)
def test_a_larger_model_may_follow_a_topology(name, size):
    both, alone = recipe(name, size), recipe(size)
    assert (both.model, both.train) == (alone.model, alone.train)
    assert both.cluster == recipe(name).cluster
    parallel = recipe(name).parallel
    mesh = {"pipe": parallel.pipe, "data": parallel.data, "model": parallel.model}
    assert both.parallel == replace(alone.parallel, **mesh)
    resolve_mesh(both, num_devices(both))
