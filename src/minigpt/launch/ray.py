"""Training on many machines: Ray starts a worker on each, and one jax runtime joins them.

This process is the driver. It prepares the tokens with the cluster's CPUs, starts the workers
through Ray Train's ``JaxTrainer``, and shows what they tell.
"""

import os
import time
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

import ray
import ray.train
from ray.exceptions import RayError
from ray.train import (
    DataConfig,
    FailureConfig,
    TrainingFailedError,
)
from ray.train.v2.jax import JaxTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console

from minigpt.config import Config
from minigpt.data.ray_build import cause_of, open_or_build_on_cluster
from minigpt.data.ray_source import RowPlan, execution_options, row_dataset
from minigpt.data.store import TokenStore
from minigpt.errors import ConfigError, InterruptedRunError, MiniGPTError
from minigpt.launch.ray_backend import RuntimeConfig
from minigpt.launch.ray_connect import connect, on_shared_storage, scaling, worker_environment
from minigpt.launch.ray_failures import FailureNotice, explain, what_is_kept
from minigpt.launch.ray_snapshot import own_snapshot
from minigpt.launch.ray_worker import Terminal, train_worker
from minigpt.launch.training import Outcome, describe_data, resolve_mesh
from minigpt.parallel.rows import rows_by_process
from minigpt.train.console import ConsoleSink, byte_progress
from minigpt.train.run_directory import RunDirectory
from minigpt.train.signals import StopSignals

_POLL_SECONDS = 0.2


def train(config: Config, console: Console) -> Outcome:
    """Prepare the data on the cluster, start the workers, and train.

    Raises:
        MiniGPTError: as ``launch.local.train``; or workers failed more often than
            ``cluster.max_failures`` allows.
    """
    launched = time.time()
    config = on_shared_storage(config)
    rows = _deal_rows(config)
    directory = RunDirectory.of(config)
    try:
        with StopSignals():
            connect(config.cluster, console)
        with StopSignals() as signals:  # after Ray has set handlers of its own
            storage = Path(config.cluster.storage_path or config.run.directory)
            progress = byte_progress(console, "tokenising")
            store, reused = open_or_build_on_cluster(config, storage, progress)
            describe_data(store, console.print, reused=reused)
            directory.check_resume(config, store.corpus)
            with own_snapshot(directory.path):
                run = _Run(config, rows, store, signals, console, launched)
                return Outcome(directory, run.wait())
    except RayError as error:
        raise MiniGPTError(
            f"the Ray cluster failed: {cause_of(error)}; {what_is_kept(config)}"
        ) from error
    finally:
        ray.shutdown()


def _deal_rows(config: Config) -> list[list[int]]:
    """Rows of each global batch that each worker needs.

    Raises:
        ConfigError: the devices, the batch or the workers cannot be divided as configured.
    """
    cluster, num_rows = config.cluster, config.train.global_batch_size
    shape = resolve_mesh(config, cluster.num_workers * cluster.devices_per_worker, use_all=True)
    dealt = rows_by_process(shape, cluster.num_workers, num_rows)
    if len({len(rows) for rows in dealt}) > 1:
        raise ConfigError(
            f"each worker must hold as many rows: with {' x '.join(map(str, shape))} devices "
            f"(pipe x data x model) over {cluster.num_workers} workers they hold "
            f"{', '.join(str(len(rows)) for rows in dealt)}; use a "
            "cluster.devices_per_worker that is a multiple or a divisor of parallel.model"
        )
    return dealt


class _Run:
    """A run on the cluster while the driver waits for it."""

    def __init__(
        self,
        config: Config,
        rows: list[list[int]],
        store: TokenStore,
        signals: StopSignals,
        console: Console,
        launched: float,
    ) -> None:
        self._config, self._rows, self._store = config, rows, store
        self._signals, self._console = signals, console
        remote: Any = ray.remote
        actor = remote(num_cpus=0, concurrency_groups={"fit": 1})(_Supervisor)
        node = ray.get_runtime_context().get_node_id()
        self._supervisor = actor.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),  # here
            runtime_env={
                "env_vars": {k: v for k, v in os.environ.items() if k.startswith("RAY_TRAIN_")}
            },
        ).remote()
        self._view: ConsoleSink | None = None
        self._training = False
        self._launched = launched

    def wait(self) -> Any:  # noqa: ANN401 - a FitResult
        """Start the workers and show what they tell until they have ended."""
        running = self._supervisor.fit.remote(self._trainer())
        told: int | None = None
        with self._signals.deferred():
            while not ray.wait([running], timeout=_POLL_SECONDS)[0]:
                self._show()
                if self._signals.received != told:
                    told = self._signals.received
                    self._stop(told)
        self._show()
        if self._view is not None:
            self._view.close()
        result = ray.get(running)
        if isinstance(result, TrainingFailedError):
            raise MiniGPTError(explain(result, self._config)) from result
        if isinstance(result, MiniGPTError):
            raise result
        return result

    def _stop(self, number: int | None) -> None:
        """Pass a signal on; where no worker trains, it ends the run here."""
        if number is not None and not self._training:
            raise InterruptedRunError(
                f"stopped by {Signals(number).name} while workers were being started; "
                f"{what_is_kept(self._config)}",
                signal_number=number,
            )
        ray.get(self._supervisor.stop.remote(number))

    def _trainer(self) -> JaxTrainer:
        config, cluster = self._config, self._config.cluster
        rows = (config, self._store.directory.resolve(), self._rows)
        return JaxTrainer(
            train_worker,
            train_loop_config={
                "config": config,
                "store_directory": self._store.directory.resolve(),
                "terminal": self._supervisor,
                "launched": self._launched,
            },
            jax_config=RuntimeConfig(
                platform=cluster.platform, devices_per_worker=cluster.devices_per_worker
            ),
            scaling_config=scaling(cluster),
            datasets={"train": partial(_dataset, *rows)},
            dataset_config=DataConfig(  # pyright: ignore[reportArgumentType]
                execution_options=execution_options(_plan(*rows)), enable_shard_locality=False
            ),
            run_config=ray.train.RunConfig(
                name=config.run.name,  # Ray's notes are kept in the run directory
                storage_path=config.run.directory,
                failure_config=FailureConfig(
                    max_failures=cluster.max_failures,
                    controller_failure_limit=10,  # 10 minutes, for nodes that are being added
                ),
                callbacks=[FailureNotice(self._supervisor)],
                worker_runtime_env={"env_vars": worker_environment(cluster)},
            ),
        )

    def _show(self) -> None:
        for kind, what in ray.get(self._supervisor.take.remote()):
            if kind in ("say", "failed"):
                self._console.print(what)
                self._training &= kind == "say"
            elif kind == "start":
                self._training = True
                if self._view is not None:
                    self._view.close()
                steps = self._config.train.steps
                self._view = ConsoleSink(self._console, steps=steps, start_step=what)
            elif self._view is not None:
                self._view.write(what) if kind == "record" else self._view.write_samples(*what)


class _Supervisor(Terminal):
    """The line to the terminal, and beside it Ray Train's ``fit``.

    In a process of its own: Ray ends a driver that shuts down while ``fit`` still waits in it,
    with exit code 1 and without a word.
    """

    @ray.method(concurrency_group="fit")
    def fit(self, trainer: JaxTrainer) -> Any:  # noqa: ANN401 - as train_worker, or Ray's error
        """Start the workers and wait until they have ended."""
        try:
            return trainer.fit().return_value
        except TrainingFailedError as error:
            return error


def _plan(config: Config, store_directory: Path, rows: list[list[int]]) -> RowPlan:
    """The rows of all workers, from the newest checkpoint on."""
    newest = RunDirectory.of(config).newest_step() or 0
    return RowPlan(
        store_directory=store_directory,
        rows_of_worker=rows,
        batch_size=config.train.global_batch_size,
        seed=config.train.seed,
        shuffle=config.data.shuffle,
        start_step=min(newest, config.train.steps - 1),  # a finished run reads nothing
        stop_step=config.train.steps,
    )


def _dataset(config: Config, store_directory: Path, rows: list[list[int]]) -> ray.data.Dataset:
    """Called by Ray in its controller whenever a group of workers starts."""
    return row_dataset(_plan(config, store_directory, rows))
