"""A small Ray cluster on this machine, for the tests marked `ray`."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

_ENVIRONMENT = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # or `uv run` gives each worker a new environment
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # Ray Data's own actors draw an error line each
}


@contextlib.contextmanager
def local_cluster(num_cpus: int) -> Iterator[None]:
    """Starts Ray for the length of the context."""
    os.environ.update(_ENVIRONMENT)  # read when Ray is imported and when it starts
    import ray
    import ray.data

    ray.init(
        address="local",  # never one that happens to run on this machine
        num_cpus=num_cpus,
        object_store_memory=256 * 1024 * 1024,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def train_workers(driver: int) -> list[int]:
    """Processes of the training workers of the cluster that a driver started."""
    processes = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            processes[int(entry.name)] = (parent, (entry / "cmdline").read_bytes())
    ours = {driver}
    for _ in range(3):  # the driver starts the raylet, which starts the workers
        ours |= {process for process, (parent, _) in processes.items() if parent in ours}
    return sorted(pid for pid in ours if processes[pid][1].startswith(b"ray::RayTrainWorker"))
