"""The Ray cluster that a command joins or starts, and what workers get of it."""

import logging
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.train import ScalingConfig
from rich.console import Console

from minigpt.config import ClusterConfig, Config
from minigpt.errors import ConfigError
from minigpt.train.checkpoint import root_cause

_CONNECT_SECONDS = 10
_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # how long a report takes
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "60",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # workers use the environment that is installed
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}


def on_shared_storage(config: Config) -> Config:
    """Absolute paths: workers have working directories of their own."""
    storage = Path(config.cluster.storage_path or ".").resolve()
    run = replace(config.run, directory=str(storage / config.run.directory))
    if config.cluster.storage_path is None:
        return replace(config, run=run)
    return replace(config, run=run, cluster=replace(config.cluster, storage_path=str(storage)))


def connect(cluster: ClusterConfig, console: Console) -> None:
    """Join the cluster, or start one on this machine.

    Raises:
        ConfigError: there is no cluster at the address, or this machine is too small.
    """
    for name in ("ray.data", "ray.train"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.update({name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()})
    options: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": "error",
        "configure_logging": True,
    }
    if cluster.address is not None:
        try:
            _reach(cluster.address)
            ray.init(cluster.address, **options)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"cluster.address: no Ray cluster answers at {cluster.address!r} "
                f"({root_cause(error)}); start one with `ray start --head`, or leave "
                "cluster.address out to start one on this machine"
            ) from error
        console.print(f"joined the Ray cluster at {cluster.address}")
        return
    # Some CPUs more than the workers take are left to Ray Data; they are only numbers.
    ray.init("local", num_cpus=cluster.num_workers + 2, include_dashboard=False, **options)
    if cluster.platform != "cpu":
        kind = {"cuda": "GPU", "tpu": "TPU"}[cluster.platform]
        found = int(ray.cluster_resources().get(kind, 0))
        if found < cluster.num_workers * cluster.devices_per_worker:
            raise ConfigError(
                f"cluster.num_workers x cluster.devices_per_worker must not exceed the {kind}s: "
                f"{cluster.num_workers} x {cluster.devices_per_worker} with {found} on this "
                "machine; give cluster.address for a larger cluster, or use cluster.platform cpu"
            )
    console.print("started a Ray cluster on this machine")


def _reach(address: str) -> None:
    """Open a connection to ``host:port`` and close it: Ray tries for minutes, deaf to Ctrl-C."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if port.isdigit():  # not "auto"
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def scaling(cluster: ClusterConfig) -> ScalingConfig:
    """The workers, and what of the cluster each of them holds."""
    resources: dict[str, float] = {"CPU": 1}
    if cluster.platform != "cpu":
        resources["GPU" if cluster.platform == "cuda" else "TPU"] = cluster.devices_per_worker
    return ScalingConfig(
        num_workers=cluster.num_workers,
        placement_strategy="SPREAD",  # one on each node, as long as there are nodes
        use_gpu=cluster.platform == "cuda",
        resources_per_worker=resources,
    )


def worker_environment(cluster: ClusterConfig) -> dict[str, str]:
    """A leaked JAX_PLATFORMS or LD_LIBRARY_PATH must not decide what workers compute on."""
    environment = {"JAX_PLATFORMS": cluster.platform}
    if cluster.platform == "cuda":
        environment["LD_LIBRARY_PATH"] = ""  # the CUDA libraries are those of jax's wheels
    return environment
