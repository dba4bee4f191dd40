"""Parameters come onto any mesh as they were saved."""

import jax
import numpy as np
import pytest
from saved_run import damage, params_of, run_config, save_run

from minigpt.config import ClusterConfig, ParallelConfig
from minigpt.errors import CheckpointError, ConfigError
from minigpt.huggingface.runs import export_run
from minigpt.train.restore import restore_run


@pytest.fixture
def run(tmp_path):
    config = run_config(tmp_path)
    return save_run(config, {2: params_of(config, 2), 5: params_of(config, 5)})


@pytest.mark.parametrize(
    "parallel", [{"data": 1}, {"pipe": 2, "data": 2, "model": 2, "interleave": 2}]
)
def test_the_newest_parameters_are_on_the_mesh_layers_in_order(run, parallel):
    told = []
    found = restore_run(run, ParallelConfig(**parallel), told.append)
    config = run_config(run.parent)
    for leaf, saved in zip(
        jax.tree.leaves(found.params), jax.tree.leaves(params_of(config, 5)), strict=True
    ):
        np.testing.assert_array_equal(leaf, saved)
        assert leaf.sharding.device_set == set(found.layout.mesh.devices.flat)
    assert (found.progress.step, told) == (5, [])
    assert found.config.model == config.model
    assert found.config.parallel == ParallelConfig(**parallel)
    assert found.config.cluster == ClusterConfig()
    assert found.tokenizer.name == "byte"
    if parallel["data"] == 2:
        kernel = found.params["blocks"]["mlp"]["up_kernel"]
        assert kernel.addressable_shards[0].data.shape == (2, 32, 16)


def test_the_batch_is_rounded_up_to_what_the_mesh_divides(run):
    parallel = ParallelConfig(data=3, microbatches=2)
    config = restore_run(run, parallel, print, batch_size=7).config
    assert config.train.global_batch_size == 12
    config = restore_run(run, ParallelConfig(), print, batch_size=8).config
    assert (config.parallel.data, config.train.global_batch_size) == (8, 8)


def test_newer_checkpoints_that_cannot_be_read_are_told_of(run, tmp_path):
    damage(run / "checkpoints" / "5")
    told = []
    assert restore_run(run, ParallelConfig(data=1), told.append).progress.step == 2
    message = f"{run}: the checkpoint of step 5 cannot be read; using an older one"
    assert told == [message]
    assert export_run(run, tmp_path / "out", told.append) == 2
    assert told == [message] * 2
    assert (run / "checkpoints" / "5").is_dir()
    damage(run / "checkpoints" / "2")
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
        restore_run(run, ParallelConfig(data=1), told.append)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"data": 16}, "1 x 16 x 1 = 16 with 8 device"),
        ({"data": 1, "model": 8}, "parallel.model must divide model.num_heads: 4"),
        ({"data": 1, "pipe": 8}, "must divide model.num_layers: 4 is not divisible by 8 x 1"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(run, parallel, message):
    with pytest.raises(ConfigError, match=message):
        restore_run(run, ParallelConfig(**parallel), print)
