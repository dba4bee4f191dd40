"""Runs of ``minigpt train`` that `cluster.py` watches."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TINY = {
    "data.tokenizer": "byte",
    "data.max-stories": 200,
    "model.num-layers": 4,
    "model.num-heads": 4,
    "model.embed-dim": 32,
    "model.seq-length": 64,
    "optimizer.schedule": "constant",
    "train.global-batch-size": 8,
    "train.log-every": 1,
    "train.eval-every": 0,
    "train.sample-every": 0,
}
WAIT_SECONDS = 600


class Run:
    """`minigpt train` in a process of its own, its lines with the moments they came."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        note: bool = False,
        processes: int = 0,
        host: Sequence[str] = (),
        **options: object,
    ) -> None:
        """Start it; ``group__field`` options stand for ``--group.field``.

        Args:
            folder: where the run is.
            name: of the run.
            note: write hashes of the rows.
            processes: train in so many joined processes, without Ray.
            host: words before the command.
            options: the configuration, on top of a tiny one.
        """
        self.path = folder / name
        fields: dict[str, object] = {"run.directory": folder, "run.name": name}
        fields |= {key.replace("__", ".").replace("_", "-"): v for key, v in options.items()}
        arguments = [word for key, v in (TINY | fields).items() for word in (f"--{key}", str(v))]
        arguments += ["--processes", str(processes)] * (processes > 0) + ["--note"] * note
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [
                *host,
                sys.executable,
                "-u",
                str(Path(__file__).with_name("cluster_train.py")),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "200"},
        )
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def wait_for_step(self, after: float = 0.0) -> float:
        """The moment of the first step that was shown after a moment."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            for moment, line in self.lines[:]:
                if moment > after and line.startswith("step "):
                    return moment
            time.sleep(0.02)
        raise self._failed("no step")

    def wait_for_restart(self, after: float) -> float:
        """The moment of the first step of a new group of workers."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            for moment, line in self.lines[:]:
                if moment > after and line.startswith("compiled the step"):
                    return self.wait_for_step(moment)
            time.sleep(0.02)
        raise self._failed("no restart")

    def end(self, expected: int = 0) -> "Run":
        """Wait for the end."""
        code = self.process.wait(WAIT_SECONDS)
        self._reader.join()
        if code != expected:
            raise self._failed(f"exit {code}")
        return self

    def _failed(self, what: str) -> RuntimeError:
        """Ends the run as well."""
        self.process.kill()
        return RuntimeError(f"{what}:\n" + "\n".join(line for _, line in self.lines[-30:]))

    def stop(self) -> "Run":
        """SIGTERM, as a scheduler does."""
        self.process.terminate()
        return self.end(143)

    def metrics(self) -> list[dict[str, Any]]:
        """Its records."""
        lines = (self.path / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def losses(self) -> dict[int, float]:
        """Of each step, which stands once."""
        found = {record["step"]: record["loss"] for record in self.metrics()}
        assert len(found) == len(self.metrics())
        return found

    def rows(self) -> dict[tuple[int, int], str]:
        """Hash of each row of each global batch; workers that hold the same row agree on it."""
        hashes: dict[tuple[int, int], str] = {}
        for file in self.path.glob("rows-*.txt"):
            for line in file.read_text().splitlines():
                step, row, digest = line.split()
                if hashes.setdefault((int(step), int(row)), digest) != digest:
                    raise RuntimeError(f"workers hold different rows {row} of step {step}")
        return hashes

    def workers(self) -> list[int]:
        """Processes of its training workers."""
        return [pid for pid, name in self.members().items() if name.startswith("ray::RayTrainW")]

    def members(self) -> dict[int, str]:
        """Processes that it started, and theirs, with their commands."""
        listing = subprocess.run(
            ["ps", "-eo", "pid=,ppid=,args="], check=True, capture_output=True, text=True
        ).stdout
        table = {
            int(pid): (int(parent), name)
            for pid, parent, name in (line.split(None, 2) for line in listing.splitlines())
        }
        ours = {self.process.pid}
        for _ in range(4):  # driver, raylet, worker
            ours |= {pid for pid, (parent, _) in table.items() if parent in ours}
        return {pid: table[pid][1] for pid in sorted(ours)}
