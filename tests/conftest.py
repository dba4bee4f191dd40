import os
import tempfile

# Before jax starts, and for the processes that tests start.
# Programs here are compiled once and run for milliseconds: LLVM's optimisations are not worth it.
# A collective that hangs on virtual devices fails within seconds instead of for ever.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    " --xla_cpu_collective_call_warn_stuck_timeout_seconds=20"
    " --xla_cpu_collective_call_terminate_timeout_seconds=60",
)
# Ray's workers make way for everything else on the machine; here that is the other tests.
os.environ.setdefault("RAY_worker_niceness", "0")
# Tests compile the same small programs many times over.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="minigpt-tests-")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jax
import pytest
from jaxtyping import install_import_hook
from xdist.scheduler import LoadScopeScheduling

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

install_import_hook("minigpt", "typecheck.check_types")


class _ByFile(LoadScopeScheduling):
    """A file's tests share a worker, and so do all that start processes: one after the other."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "processes" if _starts_processes(file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return _ByFile(config, log)


def pytest_collection_modifyitems(items):
    """What takes longest comes first, so that the workers end together."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (not _starts_processes(item.nodeid), item.path not in slow))


def _starts_processes(file: str) -> bool:
    return "/launch/" in file or "/test_ray" in file


@pytest.fixture
def story_file(tmp_path):
    """A small corpus of generated stories."""
    from minigpt.data.stories import corpus

    path = tmp_path / "stories.txt"
    path.write_text("".join(corpus(0, 60)))
    return path
