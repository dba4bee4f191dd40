"""Ray Train's list of checkpoints in the run directory.

Orbax alone owns checkpoints: it decides where a run continues and which of them go. Ray's list,
from which ``ray.train.Result`` is made, only follows. Ray would refuse to start where its list
names a checkpoint that Orbax has dropped since.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_NAME = "checkpoint_manager_snapshot.json"  # as in ray.train.v2


@contextmanager
def own_snapshot(run: Path) -> Generator[None]:
    """Begin with an empty list, and leave one of checkpoints that are there.

    ``ray.train.Result.from_path(run)`` then gives the checkpoints of the last training through
    Ray that are kept.
    """
    (run / _NAME).unlink(missing_ok=True)
    try:
        yield
    finally:
        _drop_missing(run)


def _drop_missing(run: Path) -> None:
    try:
        snapshot = json.loads((run / _NAME).read_bytes())
    except (OSError, ValueError):  # Ray got no further
        return
    pairs = zip(snapshot["checkpoint_results"], snapshot["checkpoint_report_indices"], strict=True)
    kept = [pair for pair in pairs if (run / pair[0]["checkpoint_dir_name"]).is_dir()]
    snapshot["checkpoint_results"] = [result for result, _ in kept]
    snapshot["checkpoint_report_indices"] = [index for _, index in kept]
    latest = snapshot["latest_checkpoint_result"]
    if latest not in snapshot["checkpoint_results"]:
        snapshot["latest_checkpoint_result"] = kept[-1][0] if kept else None
    (run / _NAME).write_text(json.dumps(snapshot))
