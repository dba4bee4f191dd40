import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import (
    batch_of,
    eval_step_of,
    gradients_of,
    new_state,
    tiny_config,
    train_step_of,
    with_fields,
)

from minigpt.train.optimizer import decay_mask, learning_rate_schedule
from minigpt.train.step import COMPILER_OPTIONS


def run_steps(config, num_steps=4, *, ragged=False):
    """Losses, gradient norms and final parameters."""
    state, step = new_state(config), train_step_of(config)
    metrics = []
    for seed in range(num_steps):
        state, latest = step(state, batch_of(seed, ragged=ragged))
        metrics.append([float(value) for value in latest])
    return np.array(metrics), state


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_microbatches_change_nothing(ragged, dropout):
    """20 steps in float32: the tolerance is that of every mesh.

    The learning rate is a usual one: the gradient of the key bias is zero but for rounding (a
    constant added to all keys moves no softmax), and AdamW turns that into steps of its size.
    """
    config = tiny_config(
        model={"dropout": dropout},
        train={"steps": 20},
        optimizer={"learning_rate": 1e-3, "min_learning_rate": 1e-4},
    )
    whole, whole_state = run_steps(config, 20, ragged=ragged)
    cut = with_fields(config, parallel={"microbatches": 4})
    pieces, pieces_state = run_steps(cut, 20, ragged=ragged)
    np.testing.assert_allclose(pieces[:, 0], whole[:, 0], rtol=2e-6)
    np.testing.assert_array_equal(pieces[:, 3], whole[:, 3])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        pieces_state.params,
        whole_state.params,
    )


def test_loss_is_the_mean_over_valid_targets():
    config = tiny_config()
    params = new_state(config).params
    batch = batch_of(ragged=True)
    _, loss, num_tokens, _ = gradients_of(config)(params, batch, jnp.int32(0))
    assert num_tokens == (np.maximum(np.asarray(batch.lengths), 1) - 1).sum()
    rows = []
    for tokens, length in zip(batch.tokens, batch.lengths, strict=True):
        one = type(batch)(tokens[None], jnp.array([length]))
        rows.append(float(eval_step_of(config)(params, one)[0]))
    np.testing.assert_allclose(loss, sum(rows) / num_tokens, rtol=1e-6)


def test_tokens_beyond_the_length_have_no_influence():
    config = tiny_config()
    batch = batch_of(ragged=True)
    tokens = np.array(batch.tokens)
    for row, length in zip(tokens, batch.lengths, strict=True):
        row[length:] = 7
    params = new_state(config).params
    gradients = [
        gradients_of(config)(params, b, jnp.int32(0))[0]
        for b in (batch, batch._replace(tokens=jnp.array(tokens)))
    ]
    jax.tree.map(np.testing.assert_array_equal, *gradients)


def test_gradients_are_the_slope_of_the_loss():
    config = tiny_config()
    params = new_state(config).params
    run = gradients_of(config)
    gradients, _, _, norm = run(params, batch_of(), jnp.int32(0))
    assert float(norm) == pytest.approx(float(optax.tree.norm(gradients)), rel=1e-6)
    direction = jax.tree.map(lambda g: g / norm, gradients)

    def loss_at(distance):
        moved = jax.tree.map(lambda p, d: p + distance * d, params, direction)
        return float(run(moved, batch_of(), jnp.int32(0))[1])

    slope = (loss_at(0.01) - loss_at(-0.01)) / 0.02
    assert slope == pytest.approx(float(optax.tree.norm(gradients)), rel=1e-2)


def test_clipping_bounds_the_gradient_but_reports_it_whole():
    config = tiny_config(optimizer={"clip_norm": 1e-4})
    free = with_fields(config, optimizer={"clip_norm": 0.0})
    clipped_metrics, clipped = run_steps(config, 1)
    free_metrics, unclipped = run_steps(free, 1)
    assert clipped_metrics[0, 1] == free_metrics[0, 1] > 0.1
    norms = [float(optax.tree.norm(state.opt_state[0].mu)) for state in (clipped, unclipped)]
    assert norms[0] == pytest.approx(0.1 * 1e-4, rel=1e-3)  # mu = (1 - beta1) x gradient
    assert norms[1] == pytest.approx(0.1 * free_metrics[0, 1], rel=1e-3)


def test_only_matrices_decay():
    config = tiny_config()
    params = new_state(config).params
    mask = decay_mask(params)
    assert mask["token_embedding"]
    assert mask["blocks"]["attention"]["qkv_kernel"]
    assert mask["blocks"]["mlp"]["down_kernel"]
    for module in ("attention_norm", "mlp_norm"):
        assert not any(mask["blocks"][module].values())
    assert not mask["blocks"]["attention"]["qkv_bias"]
    assert not any(mask["final_norm"].values())


def test_dropout_masks_differ_by_step_and_seed():
    config = tiny_config(model={"dropout": 0.5})
    params = new_state(config).params

    def loss(config, step):
        return float(gradients_of(config)(params, batch_of(), jnp.int32(step))[1])

    assert loss(config, 0) == loss(config, 0)
    assert loss(config, 0) != loss(config, 1)
    assert loss(config, 0) != loss(with_fields(config, train={"seed": 1}), 0)


def test_bfloat16_trains_with_float32_weights():
    config = tiny_config(train={"compute_dtype": "bfloat16"})
    exact, _ = run_steps(tiny_config())
    metrics, state = run_steps(config)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.params)} == {"float32"}
    assert (metrics[:, 0] != exact[:, 0]).any()
    np.testing.assert_allclose(metrics[:, 0], exact[:, 0], rtol=5e-3)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_schedules(schedule):
    config = tiny_config(optimizer={"schedule": schedule, "warmup_steps": 4}).optimizer
    rates = np.array([learning_rate_schedule(config, 20)(step) for step in range(21)])
    assert rates[0] == pytest.approx(config.learning_rate / 5)
    assert (np.diff(rates[:5]) > 0).all()
    assert rates[4] == pytest.approx(config.learning_rate)
    last = config.learning_rate if schedule == "constant" else config.min_learning_rate
    assert rates[20] == pytest.approx(last)


def test_one_program_serves_all_steps():
    config = tiny_config()
    state, step = new_state(config), train_step_of(config)
    for seed in range(3):
        state, _ = step(state, batch_of(seed))
    assert step._cache_size() == 1


@pytest.mark.parametrize("platform", COMPILER_OPTIONS)
def test_the_compiler_knows_its_options(platform):
    """Those of all platforms are checked by every backend."""
    compiled = jax.jit(lambda x: x + 1).lower(1.0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        compiled.compile(compiler_options={"xla_gpu_enable_no_such_thing": True})
    assert compiled.compile(compiler_options=COMPILER_OPTIONS[platform])(1.0) == 2
