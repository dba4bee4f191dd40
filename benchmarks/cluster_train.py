"""``minigpt train`` as `cluster.py` starts it.

``--processes N`` trains in N joined processes without Ray; ``--note`` writes the hash of each row
that a process is given to ``rows-PROCESS.txt`` in the run directory.
"""

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

from minigpt.commands.options import parse_config, take_flag, take_option
from minigpt.config import Config
from minigpt.data.build import open_or_build
from minigpt.data.grain_source import GrainSource
from minigpt.launch.processes import run_in_processes
from minigpt.train.run_directory import RunDirectory


def noting(source_class: type, rows: list[int], path: Path) -> type:
    """A source that also writes ``step row hash`` for each row that it hands on."""

    class Noting(source_class):
        def batches(self, start: int, stop: int) -> Any:  # noqa: ANN401 - pickled by value
            import jax  # noqa: PLC0415 - in the process that trains

            with (path / f"rows-{jax.process_index()}.txt").open("a") as notes:
                for step, batch in enumerate(super().batches(start, stop), start):
                    for row, tokens, length in zip(rows, *batch, strict=True):
                        digest = hashlib.sha256(tokens.tobytes() + str(int(length)).encode())
                        notes.write(f"{step} {row} {digest.hexdigest()}\n")
                    notes.flush()
                    yield batch

    return Noting


def noting_worker(task: dict[str, Any]) -> Any:  # noqa: ANN401 - as train_worker
    """`train_worker` with such a source; sent to the workers by value."""
    from minigpt.launch import ray_worker  # noqa: PLC0415 - in the worker

    source_class = ray_worker.RaySource

    def make(shard: Any, rows: list[int]) -> Any:  # noqa: ANN401
        return noting(source_class, rows, RunDirectory.of(task["config"]).path)(shard, rows)

    ray_worker.RaySource = make  # pyright: ignore[reportAttributeAccessIssue]
    return ray_worker.train_worker(task)


def train_alone(config: Config, note: bool) -> None:  # noqa: FBT001
    """In this process, or in each of several that are joined."""
    from minigpt.launch.training import Surroundings, train_in_process  # noqa: PLC0415
    from minigpt.train.signals import StopSignals  # noqa: PLC0415

    path = RunDirectory.of(config).path
    path.mkdir(parents=True, exist_ok=True)

    def make(reader: Any) -> Any:  # noqa: ANN401
        kind = noting(GrainSource, list(reader.held), path) if note else GrainSource
        return kind(reader)

    store, _ = open_or_build(config, lambda done, total: None)
    with StopSignals() as signals:
        surroundings = Surroundings(
            make_source=make,
            signals=signals,
            launcher="local",
            launched=time.time(),
            say=lambda text: None,
            views=lambda step: [],
        )
        train_in_process(config, store, surroundings)


def main(arguments: list[str]) -> int:
    """Train as the options say."""
    note, arguments = take_flag(arguments, "--note")
    processes, arguments = take_option(arguments, "--processes", "N")
    config = parse_config(arguments, prog="cluster_train", description="Trains.")
    if processes:
        open_or_build(config, lambda done, total: None)
        number = int(processes[0])
        run_in_processes(train_alone, config, note, num_processes=number, devices_per_process=1)
        return 0
    if config.cluster.num_workers == 0 and note:
        train_alone(config, note)
        return 0
    if note:
        from minigpt.launch import ray as through_ray  # noqa: PLC0415

        through_ray.train_worker = noting_worker
    from minigpt.cli import main as minigpt  # noqa: PLC0415

    return minigpt(["train", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
