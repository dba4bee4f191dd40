"""Sets up jax's runtime in this process: several processes as one, and programs kept on disk."""

from pathlib import Path

import jax

from minigpt.errors import MiniGPTError

HEARTBEAT_SECONDS = 20
"""A process that is silent for so long is taken for dead, and ends all others."""
SHUTDOWN_SECONDS = 15
_START_SECONDS = 120

_DEVICE_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}


def join_runtime(
    address: str, num_processes: int, rank: int, *, platform: str, num_devices: int
) -> None:
    """Make this process, before it touches a device, the ``rank``-th of a runtime.

    Args:
        address: ``host:port`` where process 0 can listen.
        num_processes: processes of the runtime.
        rank: number of this one.
        platform: "cpu", "cuda" or "tpu"; nothing else is fallen back to.
        num_devices: devices that this process must have; on a CPU they are virtual.

    Raises:
        MiniGPTError: the runtime or this process's devices are not as asked for.
    """
    jax.config.update("jax_platforms", platform)
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", num_devices)
    jax.distributed.initialize(
        address,
        num_processes,
        rank,
        cluster_detection_method="deactivate",
        initialization_timeout=_START_SECONDS,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=SHUTDOWN_SECONDS,
    )
    found = (jax.process_count(), jax.local_device_count(), jax.local_devices()[0].platform)
    wanted = (num_processes, num_devices, _DEVICE_PLATFORMS[platform])
    if found != wanted:
        raise MiniGPTError(
            f"process {rank} should be one of {wanted[0]} with {wanted[1]} {wanted[2]} device(s) "
            f"each, but jax has {found[0]} process(es) and {found[1]} {found[2]} device(s) here"
        )


def keep_programs(directory: Path) -> None:
    """Keep what is compiled from here on in a folder, so that a restart does not compile again.

    A folder that the environment chose (JAX_COMPILATION_CACHE_DIR) stays.
    """
    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(directory))
