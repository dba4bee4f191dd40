"""A configuration that trains in seconds, and batches for it."""

import dataclasses

import jax
import numpy as np

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
from minigpt.data.batches import Batch
from minigpt.train.gradients import ParallelModel
from minigpt.train.optimizer import make_optimizer
from minigpt.train.state import StateLayout, init_state, model_spec
from minigpt.train.step import make_eval_step, make_train_step

VOCAB = 257


def tiny_config(directory="runs", path=None, **groups):
    """A two-layer byte model; ``groups`` are dictionaries of fields, as ``train={"steps": 3}``."""
    config = Config(
        run=RunConfig(directory=str(directory), name="tiny"),
        data=DataConfig(path=None if path is None else str(path), tokenizer="byte", max_stories=60),
        model=ModelConfig(num_layers=2, num_heads=2, embed_dim=16, seq_length=32),
        optimizer=OptimizerConfig(learning_rate=1e-2, min_learning_rate=1e-3, warmup_steps=2),
        train=TrainConfig(
            steps=12, global_batch_size=8, log_every=1, eval_every=0, sample_every=0, eval_rows=16
        ),
        parallel=ParallelConfig(data=1),
        checkpoint=CheckpointConfig(every=4),
    )
    return with_fields(config, **groups)


def with_fields(config, **groups):
    """A configuration with fields of some groups replaced."""
    changed = {
        name: dataclasses.replace(getattr(config, name), **fields)
        for name, fields in groups.items()
    }
    return dataclasses.replace(config, **changed)


def batch_of(seed=0, rows=8, seq=32, *, ragged=False):
    """Random tokens; ``ragged`` gives rows different valid lengths, one of them none at all."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCAB, (rows, seq + 1)).astype(np.int32)
    lengths = np.full(rows, seq + 1, np.int32)
    if ragged:
        lengths = rng.integers(2, seq + 2, rows).astype(np.int32)
        lengths[-1] = 0
    return jax.device_put(Batch(tokens, lengths))


def layout_of(config):
    """The configuration's mesh, over the first of the test's devices."""
    return StateLayout.of(config.parallel)


def new_state(config, seed=0):
    """A fresh state on the configuration's mesh."""
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    return init_state(model_spec(config, VOCAB), optimizer, seed, layout_of(config))


def train_step_of(config):
    """The configuration's jitted training step."""
    return make_train_step(config, model_spec(config, VOCAB), layout_of(config))


def eval_step_of(config):
    """The configuration's jitted evaluation step."""
    return make_eval_step(config, model_spec(config, VOCAB), layout_of(config))


def gradients_of(config):
    """The configuration's jitted gradient function."""
    return jax.jit(ParallelModel(config, model_spec(config, VOCAB), layout_of(config)).gradients)
