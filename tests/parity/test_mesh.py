"""Every mesh trains what one device trains: same start, same losses, same parameters."""

from functools import cache

import jax
import numpy as np
import pytest
from tiny import (
    batch_of,
    eval_step_of,
    layout_of,
    new_state,
    tiny_config,
    train_step_of,
    with_fields,
)

from minigpt.train.checkpoint import Checkpoints, Progress

STEPS = 20
ROWS = 16


def config_of(pipe=1, data=1, model=1, *, dropout=0.1, dtype="float32", **parallel):
    return tiny_config(
        model={"num_layers": 8, "num_heads": 4, "dropout": dropout},
        train={"steps": STEPS, "global_batch_size": ROWS, "compute_dtype": dtype},
        optimizer={"learning_rate": 1e-3, "min_learning_rate": 1e-4},
        parallel={"pipe": pipe, "data": data, "model": model, **parallel},
    )


def train(config, steps=STEPS):
    """(metrics [steps, 4], initial, final parameters, evaluation), layers as on one device."""
    state, step, layout = new_state(config), train_step_of(config), layout_of(config)
    first = jax.tree.map(np.asarray, layout.save(state.params))
    metrics = []
    for seed in range(steps):
        state, latest = step(state, batch_of(seed, rows=ROWS, ragged=True))
        metrics.append([float(value) for value in latest])
    sums = eval_step_of(config)(state.params, batch_of(99, rows=ROWS, ragged=True))
    last = jax.tree.map(np.asarray, layout.save(state.params))
    assert step._cache_size() == 1
    return np.array(metrics), first, last, float(sums[0] / sums[1])


@cache
def one_device(dropout=0.1, dtype="float32"):
    return train(config_of(dropout=dropout, dtype=dtype))


def assert_same_training(config, dropout=0.1):
    metrics, first, last, evaluation = train(config)
    expected, expected_first, expected_last, expected_evaluation = one_device(dropout)
    jax.tree.map(np.testing.assert_array_equal, first, expected_first)
    np.testing.assert_allclose(metrics[:, 0], expected[:, 0], rtol=2e-6)
    np.testing.assert_allclose(metrics[:, 1], expected[:, 1], rtol=2e-5)
    np.testing.assert_array_equal(metrics[:, 3], expected[:, 3])
    assert evaluation == pytest.approx(expected_evaluation, rel=2e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), last, expected_last
    )


MESHES = [
    {"data": 8},
    {"model": 2},
    {"pipe": 4, "model": 2, "microbatches": 8},
    {"pipe": 2, "data": 2, "model": 2, "microbatches": 4, "interleave": 2},
    {"pipe": 2, "data": 2, "model": 2, "microbatches": 2, "interleave": 4, "zero": 1},
    {"pipe": 4, "microbatches": 1, "interleave": 2},
    {"pipe": 8, "microbatches": 16, "remat": "layer"},
    {"pipe": 2, "model": 2, "microbatches": 4, "schedule": "gpipe"},
    {"data": 4, "zero": 1, "microbatches": 2},
    {"data": 2, "model": 4, "sequence": True, "remat": "layer", "zero": 1},
    {"pipe": 2, "model": 4, "microbatches": 4, "sequence": True, "interleave": 2},
]
"""What each can do differently is in one of them at least."""

MORE_MESHES = [
    {"data": 2},
    {"data": 2, "model": 4},
    {"pipe": 2, "microbatches": 4},
    {"pipe": 2, "data": 2, "model": 2, "microbatches": 4},
    {"pipe": 4, "data": 2, "microbatches": 2},
    {"pipe": 2, "microbatches": 8, "schedule": "gpipe", "interleave": 2},
    {"model": 2, "sequence": True, "microbatches": 2},
    {"pipe": 2, "data": 2, "model": 2, "microbatches": 4, "sequence": True},
]


def name_of(parallel):
    return "-".join(f"{name}{value}" for name, value in parallel.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel",
    [*MESHES, *(pytest.param(mesh, marks=pytest.mark.long) for mesh in MORE_MESHES)],
    ids=name_of,
)
def test_a_mesh_trains_what_one_device_trains(parallel):
    assert_same_training(config_of(**parallel))


@pytest.mark.slow
def test_without_dropout():
    parallel = {"pipe": 2, "data": 2, "model": 2, "microbatches": 2}
    assert_same_training(config_of(dropout=0.0, **parallel), dropout=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True])
def test_bfloat16_agrees_between_meshes(sequence):
    parallel = {"pipe": 2, "data": 2, "model": 2, "microbatches": 4, "sequence": sequence}
    metrics, *_ = train(config_of(**parallel, dtype="bfloat16"))
    expected, *_ = one_device(dtype="bfloat16")
    np.testing.assert_allclose(metrics[:, 0], expected[:, 0], rtol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"pipe": 2, "data": 2, "model": 2, "interleave": 2, "microbatches": 4}),
        ({"pipe": 4, "data": 2, "interleave": 2, "microbatches": 4}, {"data": 2, "model": 4}),
        ({"data": 8, "zero": 1}, {"pipe": 8, "microbatches": 4}),
    ],
    ids=["one-to-3d", "pipeline-to-tensor", "zero-to-pipeline"],
)
def test_a_checkpoint_continues_on_another_mesh(tmp_path, before, after):
    saved, resumed = config_of(**before), config_of(**after)
    state, step, layout = new_state(saved), train_step_of(saved), layout_of(saved)
    for seed in range(10):
        state, _ = step(state, batch_of(seed, rows=ROWS, ragged=True))
    whole = jax.tree.map(np.asarray, layout.save(state))
    with Checkpoints(tmp_path / "c", keep=1) as checkpoints:
        checkpoints.save(layout.save(state), Progress(step=10))

    layout, step = layout_of(resumed), train_step_of(resumed)
    with Checkpoints(tmp_path / "c", keep=1) as checkpoints:
        target = layout.saved_target(new_state(resumed, seed=5))
        restored = checkpoints.restore(target).state
    for leaf, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(target), strict=True):
        assert leaf.sharding == wanted.sharding  # each device read its part
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, restored), whole)
    state = layout.load(restored)
    for seed in range(10, STEPS):
        state, metrics = step(state, batch_of(seed, rows=ROWS, ragged=True))
    assert float(metrics.loss) == pytest.approx(one_device()[0][-1, 0], rel=2e-6)


def test_zero_splits_the_moments_only():
    state = new_state(config_of(data=4, zero=1))
    moments, params = state.opt_state[0].mu, state.params
    sizes = [
        sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(tree))
        for tree in (moments, params)
    ]
    assert sizes[0] < 0.27 * sizes[1]


def test_what_one_device_holds_shrinks_with_the_mesh():
    def share(config):
        params = new_state(config).params
        held = sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(params))
        return held / sum(leaf.size for leaf in jax.tree.leaves(params))

    assert share(config_of(data=8)) == 1
    assert share(config_of(pipe=8)) < 0.2
    assert share(with_fields(config_of(pipe=2, data=2, model=2))) < 0.35
