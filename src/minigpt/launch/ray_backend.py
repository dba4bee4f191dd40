"""Joins the workers of a Ray group to one jax runtime, on any platform.

Ray's own backend returns early for CPU workers, each of which then trains a model of its own, and
numbers the GPUs of every worker from 0, so that two workers of a node can share devices.
"""

import os
import socket
from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax
import ray
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.jax import JaxConfig

from minigpt.errors import MiniGPTError
from minigpt.launch.runtime import join_runtime

_LEAVE_SECONDS = 5


@dataclass
class RuntimeConfig(JaxConfig):
    """What each worker brings to the runtime."""

    platform: str = "cpu"
    devices_per_worker: int = 1

    @property
    def backend_cls(self) -> Any:  # noqa: ANN401 - Ray declares its own class
        """The backend that joins them."""
        return RuntimeBackend


class RuntimeBackend(Backend):
    """Joins all workers when they have started, and leaves when they stop."""

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:  # noqa: ANN401
        """Check whose devices are whose, then join.

        Raises:
            MiniGPTError: two workers of a node were given the same device.
        """
        assert isinstance(backend_config, RuntimeConfig)
        if backend_config.platform == "cuda":
            _check_owners(worker_group.execute(_claim_gpus))
        address = worker_group.execute_single(0, _free_address)
        joining = [
            worker_group.execute_single_async(
                rank,
                join_runtime,
                address,
                len(worker_group),
                rank,
                platform=backend_config.platform,
                num_devices=backend_config.devices_per_worker,
            )
            for rank in range(len(worker_group))
        ]
        ray.get(joining)

    def on_shutdown(self, worker_group: Any, backend_config: BackendConfig) -> None:  # noqa: ANN401
        """Leave the runtime, if all are there to do so; Ray kills the workers right after."""
        leaving = worker_group.execute_async(jax.distributed.shutdown)
        ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_SECONDS)


def _claim_gpus() -> tuple[str, list[str]]:
    """This worker's node and the GPUs that Ray gave it, which alone jax will see."""
    gpus = [str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids()["GPU"]]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return ray.get_runtime_context().get_node_id(), gpus


def _check_owners(claims: list[tuple[str, list[str]]]) -> None:
    owners = Counter((node, gpu) for node, gpus in claims for gpu in gpus)
    shared = [f"GPU {gpu} of node {node[:8]}" for (node, gpu), n in owners.items() if n > 1]
    if shared:
        raise MiniGPTError(f"more than one worker was given {', '.join(shared)}")


def _free_address() -> str:
    """Where worker 0 can be reached by the others."""
    host = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(("", 0))
        port = listener.getsockname()[1]
    return f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
