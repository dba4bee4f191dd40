import os
import tempfile

import jax
import pytest
from jaxtyping import install_import_hook

# A collective that hangs on virtual devices fails within seconds instead of for ever.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=20"
    " --xla_cpu_collective_call_terminate_timeout_seconds=60",
)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


# Tests compile the same small programs many times over.
jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp(prefix="minigpt-tests-"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

install_import_hook("minigpt", "typecheck.check_types")


@pytest.fixture
def story_file(tmp_path):
    """A small corpus of generated stories."""
    from minigpt.data.stories import corpus

    path = tmp_path / "stories.txt"
    path.write_text("".join(corpus(0, 60)))
    return path
