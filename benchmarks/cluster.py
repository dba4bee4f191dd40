"""Measures training through Ray against training without it, as JSON.

    uv run python benchmarks/cluster.py [NAME ...] [--times N]      (default: all; N: 5)

``topologies``   losses and rows of 30 steps: one process, and workers x devices on several meshes
``startup``      seconds from the command to the first step, without and with Ray
``step``         seconds of a step on two processes of one device, without and with Ray
``kills``        kill -9 of a random worker at a random moment, N times in one run
``hang``         a worker that is stopped and never goes on
``driver``       kill -9 of the driver: when its workers have ended, and how the run goes on
``tokenise``     MB/s of text into a token store, without and with Ray

Times depend on what else the machine does: ``load`` stands beside each.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ray
from cluster_runs import Run

from minigpt.config import Config, DataConfig
from minigpt.data.build import open_or_build
from minigpt.data.corpus import BuiltinCorpus, ReadCounts
from minigpt.data.ray_build import encode_on_cluster

MESHES = [(1, 4, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2)]
WORKERS = [(4, 1), (2, 2), (1, 4)]


def _difference(losses: dict[int, float], expected: dict[int, float]) -> float:
    if losses.keys() != expected.keys():
        raise RuntimeError(f"{len(losses)} steps, {len(expected)} expected")
    return max(abs(losses[step] / expected[step] - 1) for step in expected)


def _mesh(shape: tuple[int, int, int]) -> dict[str, int]:
    pipe, data, model = shape
    return {
        "parallel__pipe": pipe,
        "parallel__data": data,
        "parallel__model": model,
        "parallel__microbatches": pipe,
    }


def _workers(number: int, devices: int = 1) -> dict[str, int]:
    return {"cluster__num_workers": number, "cluster__devices_per_worker": devices}


def topologies(folder: Path, times: int) -> dict[str, Any]:
    """Losses and rows of 30 steps against one device."""
    expected = Run(folder, "one", note=True, train__steps=30, **_mesh((1, 1, 1))).end()
    figures: dict[str, Any] = {"rows of one process": len(expected.rows())}
    for number, devices in WORKERS:
        for shape in MESHES:
            name = f"{number}x{devices}-{'x'.join(map(str, shape))}"
            run = Run(
                folder,
                name,
                note=True,
                train__steps=30,
                **_mesh(shape),
                **_workers(number, devices),
            )
            run.end()
            figures[name] = {
                "largest relative difference": _difference(run.losses(), expected.losses()),
                "rows equal": run.rows() == expected.rows(),
            }
            print(name, figures[name], file=sys.stderr)
    return figures


def startup(folder: Path, times: int) -> dict[str, Any]:
    """Seconds from the command to the first step of 20, the tokens being there."""
    Run(folder, "tokens", train__steps=1, **_mesh((1, 1, 1))).end()
    found: dict[str, list[float]] = {}
    for repeat in range(2):
        for name, options in (
            ("local", _mesh((1, 1, 1))),
            ("ray, 2 workers", _mesh((1, 2, 1)) | _workers(2)),
        ):
            run = Run(folder, f"{name}-{repeat}", train__steps=20, **options)
            found.setdefault(name, []).append(run.wait_for_step() - run.started)
            run.end()
    return found


LARGER = {
    "model__num_layers": 4,
    "model__embed_dim": 256,
    "model__seq_length": 128,
    "train__global_batch_size": 16,
    "train__steps": 40,
}


def step(folder: Path, times: int) -> dict[str, Any]:
    """Median seconds of a step from the 10th on; without and with Ray by turns."""
    found: dict[str, list[float]] = {"processes": [], "ray": []}
    for repeat in range(2):
        for name, options in (
            ("processes", {"processes": 2}),
            ("ray", _workers(2)),
        ):
            run = Run(folder, f"{name}-{repeat}", **LARGER, **_mesh((1, 2, 1)), **options).end()
            seconds = [record["step_seconds"] for record in run.metrics() if record["step"] >= 10]
            found[name].append(statistics.median(seconds))
    return found | {"ray / processes": min(found["ray"]) / min(found["processes"])}


def kills(folder: Path, times: int) -> dict[str, Any]:
    """Seconds to the next step, and losses against a run of the same mesh without kills."""
    generator = random.Random(0)
    options = _mesh((1, 2, 1)) | {"checkpoint__every": 20, "train__seed": 1}
    run = Run(
        folder,
        "killed",
        train__steps=100_000,
        cluster__max_failures=times,
        **options,
        **_workers(2),
    )
    moment, seconds = run.wait_for_step(), list[float]()
    for number in range(times):
        time.sleep(max(0.0, moment + generator.uniform(0, 10) - time.monotonic()))
        os.kill(generator.choice(run.workers()), signal.SIGKILL)
        killed = time.monotonic()
        moment = run.wait_for_restart(killed)
        seconds.append(moment - killed)
        print("kill", number, seconds[-1], file=sys.stderr)
    run.stop()
    losses = run.losses()
    whole = Run(folder, "whole", train__steps=len(losses), processes=2, **options).end()
    return {
        "recovered": len(seconds),
        "median seconds to the next step": statistics.median(seconds),
        "worst": max(seconds),
        "all": seconds,
        "steps": len(losses),
        "largest relative difference": _difference(losses, whole.losses()),
    }


def hang(folder: Path, times: int) -> dict[str, Any]:
    """Seconds from SIGSTOP of a worker to the next step, first of the second, then of the first."""
    run = Run(folder, "hung", train__steps=100_000, **_mesh((1, 2, 1)), **_workers(2))
    run.wait_for_step()
    seconds: list[float] = []
    for worker in (1, 0):
        time.sleep(3)
        os.kill(run.workers()[worker], signal.SIGSTOP)
        stopped = time.monotonic()
        seconds.append(run.wait_for_restart(stopped) - stopped)
        print("hang", seconds[-1], file=sys.stderr)
    run.stop()
    return {"seconds to the next step": seconds}


def driver(folder: Path, times: int) -> dict[str, Any]:
    """Seconds until nothing is left of a run whose driver was killed, and where it goes on."""
    options = {"train__steps": 100_000, "checkpoint__every": 20, **_mesh((1, 2, 1)), **_workers(2)}
    run = Run(folder, "driver", **options)
    while not (run.path / "checkpoints" / "20").is_dir():
        time.sleep(0.1)
    workers, members = run.workers(), run.members()
    run.process.kill()
    killed = time.monotonic()
    run.process.wait()
    figures = {
        "seconds until the workers ended": _wait_for_end(workers) - killed,
        "seconds until all processes ended": _wait_for_end(members) - killed,
    }
    again = Run(folder, "driver", **options)
    again.wait_for_step()
    said = [line for _, line in again.lines if line.startswith("continuing")]
    again.stop()
    whole = Run(folder, "whole", train__steps=100, processes=2, **_mesh((1, 2, 1))).end()
    losses = {step: loss for step, loss in again.losses().items() if step <= 100}
    expected = {step: loss for step, loss in whole.losses().items() if step in losses}
    return figures | {"said": said, "largest relative difference": _difference(losses, expected)}


def _wait_for_end(processes: Iterable[int]) -> float:
    deadline = time.monotonic() + 300
    while any(_lives(process) for process in processes):
        if time.monotonic() > deadline:
            raise RuntimeError("processes are left")
        time.sleep(0.1)
    return time.monotonic()


def _lives(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    with contextlib.suppress(OSError):
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def tokenise(folder: Path, times: int) -> dict[str, Any]:
    """MB/s of a text file into a token store of GPT-2 tokens; the cluster is started before."""
    text = "<|endoftext|>".join(p.text for p in BuiltinCorpus(100_000).pieces(ReadCounts()))
    path = folder / "stories.txt"
    path.write_text(text)
    size = path.stat().st_size / 1e6
    config = Config(data=DataConfig(path=str(path)))
    ray.init(
        "local",
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    found: dict[str, Any] = {"MB": size, "CPUs": os.cpu_count()}
    stores: list[str] = []
    for repeat in range(2):
        for name, options in (("local", {}), ("ray", {"encode": encode_on_cluster})):
            target = folder / f"{name}-{repeat}"
            started = time.monotonic()
            store, _ = open_or_build(config, lambda done, total: None, directory=target, **options)
            found.setdefault(f"{name}, MB/s", []).append(size / (time.monotonic() - started))
            stores.append(_hash_of(store.directory))
    ray.shutdown()
    return found | {"stores equal": len(set(stores)) == 1}


def _hash_of(directory: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


MEASUREMENTS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    function.__name__: function
    for function in (topologies, startup, step, kills, hang, driver, tokenise)
}


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []])
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.names or MEASUREMENTS:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            figures = MEASUREMENTS[name](Path(folder), arguments.times)
        figures["load before, after"] = [load, os.getloadavg()[0]]
        print(json.dumps({name: figures}, indent=1), flush=True)


if __name__ == "__main__":
    main()
