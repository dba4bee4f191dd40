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
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

install_import_hook("minigpt", "typecheck.check_types")


def pytest_collection_modifyitems(items):
    """Tests that start processes of their own run one after the other."""
    for item in items:
        if item.get_closest_marker("ray") or "launch" in item.path.parts:
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.fixture
def story_file(tmp_path):
    """A small corpus of generated stories."""
    from minigpt.data.stories import corpus

    path = tmp_path / "stories.txt"
    path.write_text("".join(corpus(0, 60)))
    return path
