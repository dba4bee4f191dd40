"""Parameters without their training: a run's newest ones on any mesh, and a run made of some."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp

from minigpt.config import ClusterConfig, Config, ParallelConfig
from minigpt.data.tokenizer import Tokenizer, load_tokenizer
from minigpt.model.gpt import GPTSpec
from minigpt.parallel.mesh import mesh_shape
from minigpt.train.checkpoint import Checkpoints, Progress
from minigpt.train.optimizer import make_optimizer
from minigpt.train.run_directory import RunDirectory
from minigpt.train.state import Params, StateLayout, TrainState, init_params, model_spec


@dataclass(frozen=True, kw_only=True)
class RestoredRun:
    """A checkpoint's parameters, and all that it takes to use them."""

    config: Config
    """The run's, but for the mesh and the batch that were asked for, and without a cluster."""
    tokenizer: Tokenizer
    spec: GPTSpec
    layout: StateLayout
    """Of the mesh."""
    params: Params
    """On the mesh, with layers ``[layers, ...]``; ``layout.load`` makes them a step's."""
    progress: Progress
    """When the checkpoint was saved."""


def restore_run(
    run: Path,
    parallel: ParallelConfig,
    notify: Callable[[str], None],
    *,
    batch_size: int = 1,
) -> RestoredRun:
    """The newest checkpoint of a run that can be read; changes nothing in it.

    Args:
        run: the run directory.
        parallel: the mesh to restore onto, over the first of jax's devices.
        notify: is told of newer checkpoints that cannot be read.
        batch_size: rows that the model will be given at once; rounded up to what the mesh
            divides, it is ``train.global_batch_size`` of the result.

    Raises:
        CheckpointError: there is no run, or none of its checkpoints can be read.
        ConfigError: the mesh does not fit the devices or the model.
    """
    directory = RunDirectory(run)
    config = _on_mesh(directory.read_config()[0], parallel, batch_size)
    tokenizer = load_tokenizer(config.data.tokenizer)
    spec, layout = model_spec(config, tokenizer.vocab_size), StateLayout.of(config.parallel)
    shapes = jax.eval_shape(lambda: layout.to_chunks(init_params(spec, 0)))
    with Checkpoints(directory.checkpoints, keep=None) as checkpoints:
        params, progress = checkpoints.restore_params(layout.saved_target(shapes))
        newer = [step for step in checkpoints.steps() if step > progress.step]
    for step in newer:
        notify(f"{run}: the checkpoint of step {step} cannot be read; using an older one")
    return RestoredRun(
        config=config,
        tokenizer=tokenizer,
        spec=spec,
        layout=layout,
        params=params,
        progress=progress,
    )


def write_run(config: Config, params: Params) -> RunDirectory:
    """Make a run at step 0 of parameters with layers ``[layers, ...]``, on one device.

    Data decides nothing yet: the first training writes its own.
    """
    opt_state = make_optimizer(config.optimizer, config.train.steps).init(params)
    directory = RunDirectory.of(config)
    with Checkpoints(directory.checkpoints, keep=None) as checkpoints:
        checkpoints.save(TrainState(jnp.int32(0), params, opt_state), Progress(step=0))
    directory.write_config(config, {})
    return directory


def _on_mesh(config: Config, parallel: ParallelConfig, batch_size: int) -> Config:
    """The configuration on this process's devices, with a batch that they divide."""
    pipe, data, model = mesh_shape(parallel, jax.device_count())
    groups = data * parallel.microbatches
    num_rows = -(-batch_size // groups) * groups
    return replace(
        config,
        parallel=replace(parallel, pipe=pipe, data=data, model=model),
        train=replace(config.train, global_batch_size=num_rows),
        cluster=ClusterConfig(),
    )
