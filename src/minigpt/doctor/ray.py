"""Examines the workers of a cluster: started and joined as those that would train."""

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import ray
import ray.train
from ray.train import FailureConfig, TrainingFailedError
from ray.train.backend import BackendConfig
from ray.train.v2.jax import JaxTrainer
from rich.console import Console

from minigpt.config import ClusterConfig, Config
from minigpt.doctor.cluster_checks import resources
from minigpt.doctor.facts import (
    Findings,
    NodeFacts,
    Resources,
    StorageFacts,
    device_facts,
    node_facts,
)
from minigpt.doctor.links import measure_links
from minigpt.doctor.probes import (
    cannot_reach,
    close_ports,
    left_as_found,
    open_port,
    read_probe,
    remove_probe,
    write_probe,
)
from minigpt.errors import ConfigError, MiniGPTError
from minigpt.launch.ray_backend import RuntimeBackend, RuntimeConfig
from minigpt.launch.ray_connect import connect, on_shared_storage, scaling, worker_environment
from minigpt.launch.ray_failures import why
from minigpt.launch.ray_worker import Watchdog
from minigpt.launch.training import resolve_mesh
from minigpt.parallel.mesh import make_mesh

_HANG_SECONDS = 180
"""A worker that measures for longer waits for another one that does not."""
_CLOCK_TRIES = 3


class Notebook:
    """An actor: keeps what was found, also when the workers fail later."""

    def __init__(self) -> None:
        """Nothing was found yet."""
        self._notes: dict[str, Any] = {}
        self._of_workers: dict[int, dict[str, Any]] = {}

    def note(self, **found: Any) -> None:  # noqa: ANN401 - fields of Findings
        """Of the backend."""
        self._notes |= found

    def note_worker(self, rank: int, **found: Any) -> None:  # noqa: ANN401 - of one worker
        """Of a worker."""
        self._of_workers[rank] = found

    def read(self) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """All that was noted."""
        return self._notes, self._of_workers


def examine(config: Config, console: Console) -> Findings:
    """Find out what training on the cluster would meet."""
    config = on_shared_storage(config)
    findings = Findings(driver=node_facts("the driver", "driver"))
    try:
        try:
            connect(config.cluster, console)
        except Exception as error:  # noqa: BLE001 - a Ray that cannot start raises plain ones
            return replace(findings, failure=str(error))
        nodes, free = _resources(config.cluster)
        findings = replace(findings, nodes=nodes, free=free)
        if resources(config.cluster, nodes, free).level == "error":
            return findings
        storage = Path(config.run.directory)  # below cluster.storage_path, unless it is absolute
        console.print(f"starting {config.cluster.num_workers} worker(s) to look at their nodes")
        with left_as_found(storage), tempfile.TemporaryDirectory() as own:
            return _ask_workers(config, findings, storage, own)
    finally:
        ray.shutdown()


def _resources(cluster: ClusterConfig) -> tuple[tuple[Resources, ...], Resources]:
    """Of each node, and of the cluster what is free."""
    kind = "TPU" if cluster.platform == "tpu" else "GPU"

    def read(told: Mapping[str, float]) -> Resources:
        return Resources(cpus=told.get("CPU", 0), accelerators=told.get(kind, 0))

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return tuple(map(read, alive)), read(ray.available_resources())


def _ask_workers(config: Config, findings: Findings, storage: Path, own: str) -> Findings:
    cluster = config.cluster
    actor: Any = ray.remote(num_cpus=0)(Notebook)
    notebook = actor.remote()
    trainer = JaxTrainer(
        examine_worker,
        train_loop_config={"config": config, "notebook": notebook},
        jax_config=DoctorConfig(
            platform=cluster.platform,
            devices_per_worker=cluster.devices_per_worker,
            notebook=notebook,
            storage=storage,
        ),
        scaling_config=scaling(cluster),
        run_config=ray.train.RunConfig(
            name="doctor",
            storage_path=own,
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            worker_runtime_env={"env_vars": worker_environment(cluster)},
        ),
    )
    failure = None
    try:
        trainer.fit()
    except TrainingFailedError as error:
        failure = why(error)
    notes, of_workers = ray.get(notebook.read.remote())
    if len(of_workers) == cluster.num_workers:
        ranks = range(cluster.num_workers)
        notes["devices"] = tuple(of_workers[rank]["devices"] for rank in ranks)
        notes |= {name: of_workers[0][name] for name in ("mesh_failure", "links")}
    return replace(findings, failure=failure, **notes)


@dataclass
class DoctorConfig(RuntimeConfig):
    """Joins the workers as for training, after a look at their nodes."""

    notebook: Any = None
    storage: Path = Path()

    @property
    def backend_cls(self) -> Any:  # noqa: ANN401 - Ray declares its own class
        """The backend that looks and joins."""
        return DoctorBackend


class DoctorBackend(RuntimeBackend):
    """Looks at each worker's node before it joins them."""

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:  # noqa: ANN401
        """Note what can be seen without the runtime, then join it.

        Raises:
            MiniGPTError: the workers cannot reach each other, or as the backend for training.
        """
        assert isinstance(backend_config, DoctorConfig)
        note = backend_config.notebook.note

        def tell(**found: Any) -> None:  # noqa: ANN401 - fields of Findings
            ray.get(note.remote(**found))

        workers = _on_all(worker_group, _worker_facts)
        tell(workers=tuple(workers))
        tell(clock_offsets=tuple(_clock_offset(worker_group, r) for r in range(len(workers))))
        tell(storage=_try_storage(worker_group, backend_config.storage, workers))
        unreachable = _try_ports(worker_group, workers)
        tell(unreachable=tuple(unreachable))
        if unreachable:
            raise MiniGPTError("they cannot reach each other")
        super().on_start(worker_group, backend_config)


def _on_all(worker_group: Any, function: Callable[..., Any], *arguments: Any) -> list[Any]:  # noqa: ANN401
    """Call ``function(rank, *arguments)`` in all workers at once."""
    calls = [
        worker_group.execute_single_async(rank, function, rank, *arguments)
        for rank in range(len(worker_group))
    ]
    return ray.get(calls)


def _worker_facts(rank: int) -> NodeFacts:
    context = ray.get_runtime_context()
    gpus = tuple(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", ()))
    address = ray.util.get_node_ip_address()
    return node_facts(f"worker {rank} on {address}", context.get_node_id(), gpus)


def _clock_offset(worker_group: Any, rank: int) -> tuple[float, float]:  # noqa: ANN401
    """Seconds that a worker's clock is ahead of this one, and how far that can be wrong."""
    found: list[tuple[float, float]] = []
    for _ in range(_CLOCK_TRIES):
        before = time.time()
        there = worker_group.execute_single(rank, time.time)
        after = time.time()
        found.append((there - (before + after) / 2, (after - before) / 2))
    return min(found, key=lambda pair: pair[1])


def _try_storage(
    worker_group: Any,  # noqa: ANN401
    storage: Path,
    workers: list[NodeFacts],
) -> StorageFacts:
    token, ranks = secrets.token_hex(4), range(len(workers))
    failed = _on_all(worker_group, _write, storage, token)
    problems = [f"{workers[r].process} cannot write ({failed[r]})" for r in ranks if failed[r]]
    written = [rank for rank in ranks if failed[rank] is None]
    for rank, missing in enumerate(_on_all(worker_group, _read, storage, token, written)):
        if missing:
            writers = ", ".join(workers[other].process for other in missing)
            problems.append(f"{workers[rank].process} does not see what was written by {writers}")
    free = [free for free in _on_all(worker_group, _remove, storage, token) if free is not None]
    return StorageFacts(
        directory=str(storage), free_bytes=min(free, default=None), problems=tuple(problems)
    )


def _write(rank: int, storage: Path, token: str) -> str | None:
    return write_probe(storage, token, rank)


def _read(rank: int, storage: Path, token: str, written: list[int]) -> list[int]:
    del rank
    return read_probe(storage, token, written)


def _remove(rank: int, storage: Path, token: str) -> int | None:
    del rank
    return remove_probe(storage, token)


def _try_ports(worker_group: Any, workers: list[NodeFacts]) -> list[str]:  # noqa: ANN401
    addresses = _on_all(worker_group, _open)
    failed = _on_all(worker_group, _reach, addresses)
    worker_group.execute(close_ports)
    return [
        f"{workers[rank].process} cannot reach {workers[other].process} ({why})"
        for rank, answers in enumerate(failed)
        for other, why in answers
    ]


def _open(rank: int) -> tuple[str, int]:
    del rank
    return ray.util.get_node_ip_address(), open_port()


def _reach(rank: int, addresses: list[tuple[str, int]]) -> list[tuple[int, str]]:
    del rank
    return cannot_reach(addresses)


def examine_worker(task: dict[str, Any]) -> None:
    """Look at this worker's devices, and measure the mesh together with the others.

    Args:
        task: the ``config``, and the ``notebook`` to write to.
    """
    config: Config = task["config"]
    watchdog = Watchdog(_HANG_SECONDS)
    watchdog.beat()
    try:
        found: dict[str, Any] = {"devices": device_facts(config.train.compute_dtype)}
        found |= {"links": (), "mesh_failure": None}
        watchdog.beat()
        try:
            found["links"] = measure_links(make_mesh(resolve_mesh(config, jax.device_count())))
        except ConfigError as error:
            found["mesh_failure"] = str(error)
        ray.get(task["notebook"].note_worker.remote(jax.process_index(), **found))
    finally:
        watchdog.stop()
