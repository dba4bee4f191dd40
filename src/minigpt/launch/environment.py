"""What a run runs on, for its records."""

import platform
import socket
import zlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from minigpt import __version__
from minigpt.data.tokenizer import load_tokenizer
from minigpt.model.flops import num_parameters
from minigpt.parallel.mesh import device_names
from minigpt.train.loop import Training

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "ray")


def run_facts(training: Training, mesh: Mesh) -> dict[str, Any]:
    """What the records of a run must say for it to be understood and compared.

    Every process of the runtime calls this.
    """
    device = mesh.devices.flat[0]
    config = training.config
    vocab_size = load_tokenizer(config.data.tokenizer).vocab_size
    return {
        "num_parameters": num_parameters(config.model, vocab_size),
        "flops_per_token": training.flops_per_token,
        "peak_flops": training.peak_flops,
        "platform": device.platform,
        "device_kind": device.device_kind,
        "processor": platform.processor() or platform.machine(),
        "num_devices": mesh.size,
        "num_processes": jax.process_count(),
        "num_nodes": _num_nodes(),
        "mesh": dict(mesh.shape),
        "device_names": device_names(mesh),
        "system": platform.platform(),
        "versions": {"minigpt": __version__, "python": platform.python_version(), **_versions()},
    }


def _num_nodes() -> int:
    """Of different names."""
    name = np.int32(zlib.crc32(socket.gethostname().encode()) & 0x7FFFFFFF)
    return len(np.unique(multihost_utils.process_allgather(name)))


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
