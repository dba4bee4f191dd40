"""What one process measures about its node and its devices."""

import ctypes
import os
import platform
import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

import minigpt
from minigpt.bench import device_rates
from minigpt.doctor.links import Link

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "ray", "numpy")
_VARIABLES = ("JAX_PLATFORMS", "LD_LIBRARY_PATH", "XLA_FLAGS")
_INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "sve", "bf16")
_SMI_SECONDS = 20


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """A process's node, as far as it can be seen without touching a device."""

    process: str
    """Which process measured, for messages: "worker 1 on 10.0.0.2"."""
    node: str
    """What identifies the node."""
    versions: dict[str, str]
    """Of each package that decides what is computed; "none" where it is not installed."""
    processor: str
    num_cores: float
    """Cores that this process may use."""
    instruction_sets: tuple[str, ...]
    memory_bytes: int
    available_bytes: int
    shared_memory_bytes: int | None
    """Free in /dev/shm, if there is one."""
    environment: dict[str, str]
    """Variables that change what jax does, of those that are set."""
    gpus: tuple[str, ...] = ()
    """Names of the node's NVIDIA GPUs, as the driver tells them."""
    driver: str | None = None
    """Version of the NVIDIA driver, if there is one."""
    host_address: str | None = None
    """What the node's own name resolves to."""
    assigned: tuple[str, ...] = ()
    """Numbers of the GPUs that Ray gave to this process."""


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """What jax found in one process."""

    platform: str
    """As jax says: "cpu", "gpu" or "tpu"."""
    kind: str
    count: int
    """Devices of this process."""
    memory_bytes: int | None = None
    """Of one device, where it has its own."""
    cudnn: tuple[str, str] | None = None
    """Version and file of the cuDNN that is loaded."""
    matrix_flops: float | None = None
    """FLOP/s of a matrix product in ``train.compute_dtype`` on each device, all at once."""
    memory_bandwidth: float | None = None
    """Bytes/s of an operation on each element, on each device, all at once."""


@dataclass(frozen=True, kw_only=True)
class StorageFacts:
    """Whether all processes could write to the storage, and read what all had written."""

    directory: str
    free_bytes: int | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What Ray has on one node."""

    cpus: float
    accelerators: float


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All that was found; the parts that an earlier failure prevented are empty."""

    driver: NodeFacts
    """The process that the user started."""
    storage: StorageFacts | None = None
    nodes: tuple[Resources, ...] = ()
    """Of a cluster."""
    free: Resources | None = None
    """Of a cluster, what no other job holds."""
    workers: tuple[NodeFacts, ...] = ()
    """Processes that would train, by rank."""
    failure: str | None = None
    """Why the devices could not be looked at."""
    unreachable: tuple[str, ...] | None = None
    """Connections between workers that failed."""
    clock_offsets: tuple[tuple[float, float], ...] = ()
    """Seconds that each worker's clock is ahead, and how far that can be wrong."""
    devices: tuple[DeviceFacts, ...] = ()
    """Of each worker, by rank."""
    mesh_failure: str | None = None
    """Why the devices make no mesh of the kind that is asked for."""
    links: tuple[Link, ...] = ()


def node_facts(process: str, node: str, assigned: tuple[str, ...] = ()) -> NodeFacts:
    """Measure this process's node.

    Args:
        process: how messages call this process.
        node: what identifies the node.
        assigned: the GPUs that this process was given.
    """
    processor, flags = _processor()
    total, available = _memory()
    driver, gpus = _nvidia()
    return NodeFacts(
        process=process,
        node=node,
        versions=_versions(),
        processor=processor,
        num_cores=_num_cores(),
        instruction_sets=tuple(name for name in _INSTRUCTION_SETS if name in flags),
        memory_bytes=total,
        available_bytes=available,
        shared_memory_bytes=_free_bytes(Path("/dev/shm")),
        environment={name: os.environ[name] for name in _VARIABLES if os.environ.get(name)},
        gpus=gpus,
        driver=driver,
        host_address=_host_address(),
        assigned=assigned,
    )


def device_facts(compute_dtype: str) -> DeviceFacts:
    """Look at jax's devices, and measure what each reaches while all of them work."""
    devices = jax.local_devices()
    matrix_flops, memory_bandwidth = device_rates(compute_dtype)
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    gpu = devices[0].platform == "gpu"
    return DeviceFacts(
        platform=devices[0].platform,
        kind=devices[0].device_kind,
        count=len(devices),
        memory_bytes=limit if devices[0].platform != "cpu" else None,
        cudnn=_cudnn() if gpu else None,
        matrix_flops=matrix_flops,
        memory_bandwidth=memory_bandwidth,
    )


def _versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "minigpt": f"{minigpt.__version__} (source {_source_digest()})",
    }
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


@cache
def _source_digest() -> str:
    """Of MiniGPT's own files: nodes with different checkouts can have the same version."""
    root, digest = Path(minigpt.__file__).parent, sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()[:8]


def _processor() -> tuple[str, set[str]]:
    """Name and instruction sets; what /proc does not tell is left out."""
    text = _read("/proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    shown = name.group(1) if name else platform.processor() or platform.machine()
    return shown, set(flags.group(1).split()) if flags else set()


def _num_cores() -> float:
    """Of this process's affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").strip().partition(" ")
    limit = int(quota) / int(period) if quota.isdigit() else None
    return float(cores or 1) if limit is None else min(float(cores or 1), limit)


def _memory() -> tuple[int, int]:
    """(total, available) bytes, of the container where it has a limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told = re.search(r"^MemAvailable:\s*(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    available = 1024 * int(told.group(1)) if told else total
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit() and int(limit) < total:
        used = int(_read("/sys/fs/cgroup/memory.current").strip() or 0)
        total, available = int(limit), min(available, int(limit) - used)
    return total, available


def _nvidia() -> tuple[str | None, tuple[str, ...]]:
    """Driver version and names of the GPUs."""
    query = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_SECONDS)  # noqa: PLW1510
    except (OSError, subprocess.TimeoutExpired):
        return None, ()
    lines = [line.split(", ", 1) for line in told.stdout.splitlines() if ", " in line]
    if told.returncode or not lines:
        return None, ()
    return lines[0][0], tuple(name for _, name in lines)


def _cudnn() -> tuple[str, str] | None:
    """Version and file of the library in this process's memory."""
    file = re.search(r"/\S*/libcudnn\.so\S*", _read("/proc/self/maps"))
    if file is None:
        return None
    number = int(ctypes.CDLL(file.group()).cudnnGetVersion())
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}", file.group()


def _host_address() -> str | None:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None


def _free_bytes(directory: Path) -> int | None:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return None


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""
