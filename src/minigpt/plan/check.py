"""Compiles the step of a mesh ahead of time and compares the plan with what XLA made of it."""

from collections import Counter
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from minigpt.config import Config
from minigpt.data.batches import Batch
from minigpt.parallel.pipeline import conditions
from minigpt.parallel.sharding import BATCH
from minigpt.plan.hlo import Collective, collectives
from minigpt.plan.memory import Memory, step_memory
from minigpt.plan.traffic import step_traffic
from minigpt.train.optimizer import make_optimizer
from minigpt.train.state import StateLayout, model_spec, state_shapes
from minigpt.train.step import make_train_step


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Prediction and program of one mesh.

    Attributes:
        memory: predicted.
        argument_bytes: state and rows of one device, by XLA's memory analysis.
        temporary_bytes: everything else at the peak, by the same.
        traffic: predicted collectives of one step.
        found: those of the optimised HLO.
    """

    memory: Memory
    argument_bytes: int
    temporary_bytes: int
    traffic: Counter[Collective]
    found: Counter[Collective]

    @property
    def memory_ratio(self) -> float:
        """Predicted memory over XLA's."""
        return self.memory.total / (self.argument_bytes + self.temporary_bytes)


def check(config: Config, vocab_size: int) -> Checked:
    """Compile a configuration's step for the first of jax's devices, and compare.

    Args:
        config: with ``parallel.data`` given; compiled for CPU devices, whatever its platform.
        vocab_size: of the tokenizer.
    """
    config = replace(config, cluster=replace(config.cluster, platform="cpu"))
    parallel = config.parallel
    shape = (parallel.pipe, parallel.data, parallel.model)
    padded = model_spec(config, vocab_size).padded_vocab_size
    step = compile_step(config, vocab_size)
    analysis = step.memory_analysis()
    program = step.as_text()
    holds = conditions(parallel.microbatches, parallel.interleave)
    assert analysis is not None, "every backend of jax 0.11 to 0.12 has it"
    assert program is not None, "as above"
    return Checked(
        memory=step_memory(config, shape, padded),
        argument_bytes=analysis.argument_size_in_bytes,
        temporary_bytes=analysis.temp_size_in_bytes,
        traffic=step_traffic(config, shape, padded),
        found=collectives(program, shape, condition_holds=holds),
    )


def compile_step(config: Config, vocab_size: int) -> jax.stages.Compiled:
    """The compiled training step, from shapes alone."""
    layout = StateLayout.of(config.parallel)
    spec = model_spec(config, vocab_size)
    shapes = state_shapes(spec, make_optimizer(config.optimizer, config.train.steps), layout)
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        layout.shardings(shapes),
    )
    rows, row = config.train.global_batch_size, config.model.seq_length + 1
    sharding = NamedSharding(layout.mesh, BATCH)
    batch = Batch(
        jax.ShapeDtypeStruct((rows, row), jnp.int32, sharding=sharding),
        jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=sharding),
    )
    return make_train_step(config, spec, layout).lower(state, batch).compile()
