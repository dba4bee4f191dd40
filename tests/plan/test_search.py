"""Every valid plan, once, in order; and what is said of them."""

import dataclasses

import pytest

from minigpt.config import Config, ModelConfig, TrainConfig
from minigpt.errors import ConfigError
from minigpt.model.sizes import padded_vocabulary
from minigpt.plan.clusters import load_cluster
from minigpt.plan.explain import explain
from minigpt.plan.search import plans

LARGE = ModelConfig(num_layers=48, num_heads=25, embed_dim=1600, seq_length=1024)


def config_of(model=LARGE, batch=64):
    train = TrainConfig(global_batch_size=batch, compute_dtype="bfloat16", steps=1000)
    return Config(model=model, train=train)


def found_on(spec, config=None):
    cluster = load_cluster(spec) if isinstance(spec, str) else spec
    return plans(config or config_of(), cluster, 50257, padded_vocabulary(50257))


def test_all_devices_in_valid_meshes_once():
    found = found_on("2xg5.12xlarge")
    for plan in found:
        parallel = plan.config.parallel
        assert parallel.pipe * parallel.data * parallel.model == 8
        assert 25 % parallel.model == 0
        assert 64 % (parallel.data * parallel.microbatches) == 0
        assert 48 % (parallel.pipe * parallel.interleave) == 0
    parallels = [plan.config.parallel for plan in found]
    assert len(set(parallels)) == len(parallels)
    for option in ("remat", "zero", "interleave", "microbatches", "pipe", "data"):
        assert len({getattr(parallel, option) for parallel in parallels}) > 1, option
    even = found_on("2xg5.12xlarge", config_of(dataclasses.replace(LARGE, num_heads=16)))
    assert {plan.config.parallel.model for plan in even} == {1, 2, 4, 8}
    assert {plan.config.parallel.sequence for plan in even} == {False, True}


def test_those_that_fit_come_first_the_fastest_before():
    found = found_on("2xg5.12xlarge")
    fitting = [plan for plan in found if plan.fits]
    assert 0 < len(fitting) < len(found)
    assert found[: len(fitting)] == fitting
    times = [plan.time.total for plan in fitting]
    assert times == sorted(times)
    best = found[0]
    assert best.tokens_per_second == pytest.approx(64 * 1024 / best.time.total)
    assert best.hours == pytest.approx(1000 * best.time.total / 3600)
    assert best.dollars == pytest.approx(best.hours * 2 * 5.672)
    assert 0.1 < best.mfu < 0.7


def test_a_batch_that_nothing_divides():
    with pytest.raises(ConfigError, match="no mesh of 8 devices divides the run"):
        found_on("8xg5.xlarge", config_of(dataclasses.replace(LARGE, num_layers=7), batch=5))


def explained(spec, config=None):
    cluster = load_cluster(spec)

    def search(other):
        return found_on(other, config)

    return "\n".join(explain(found_on(cluster, config), search))


def test_several_nodes_are_explained():
    said = explained("2xg5.12xlarge")
    best = found_on("2xg5.12xlarge")[0]
    assert said.startswith(f"{best.label} is the fastest that fits")
    for fragment in (
        "Against the second",
        "Memory of a device",
        "Across nodes goes what is exchanged over pipe.",
        "On one node with the same 8 devices",
        "5.0 GB/s of each node for 4 devices",
        "One of these nodes alone would take",
        "the run costs $",
    ):
        assert fragment in said


def test_one_node_is_not_compared_with_one_node():
    said = explained("1xp4d.24xlarge")
    assert "On one node" not in said
    assert "Across nodes" not in said


def test_nothing_fits():
    huge = config_of(dataclasses.replace(LARGE, num_layers=96, num_heads=32, embed_dim=4096))
    said = explained("1xg5.12xlarge", huge)
    assert said.startswith("Nothing fits. The nearest, ")
    assert "of the 22.0 of a device" in said
    assert "nodes" in said
    assert "model.embed_dim" in said
