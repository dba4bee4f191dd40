"""A run that was never trained: weights at random, large enough that every token matters."""

import jax
import jax.numpy as jnp
import numpy as np
from tiny import VOCAB, tiny_config

from minigpt.train.checkpoint import Checkpoints, Progress
from minigpt.train.optimizer import make_optimizer
from minigpt.train.run_directory import RunDirectory
from minigpt.train.state import TrainState, init_params, model_spec

SEQ = 16


def run_config(directory, layout="packed"):
    """Four layers and a context of 16 bytes, as if trained on a cluster of 2 x 2 devices."""
    return tiny_config(
        directory,
        data={"layout": layout},
        model={"num_layers": 4, "seq_length": SEQ, "num_heads": 4},
        parallel={"data": 4},
        cluster={"num_workers": 2, "devices_per_worker": 2},
    )


def params_of(config, seed):
    """Parameters with layers ``[layers, ...]``."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: init_params(model_spec(config, VOCAB), 0))
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), jnp.float32), shapes
    )


def save_run(config, params_by_step):
    """Write a run directory with a checkpoint for each step."""
    directory = RunDirectory.of(config)
    directory.write_config(config, {})
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    with Checkpoints(directory.checkpoints, keep=None) as checkpoints:
        for step, params in params_by_step.items():
            state = TrainState(jnp.int32(step), params, optimizer.init(params))
            checkpoints.save(state, Progress(step=step))
    return directory.path


def damage(checkpoint):
    """Cut its files off, as a full disk does."""
    for path in checkpoint.glob("*/d/*"):
        path.write_bytes(path.read_bytes()[:20])
