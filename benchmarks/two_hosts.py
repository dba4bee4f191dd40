"""Trains on two "hosts" of this machine and cuts the link between them in mid-run.

    sudo uv run python benchmarks/two_hosts.py

The hosts are network namespaces joined by a veth pair, each with an address, a name and a Ray
node of its own. Prints JSON: seconds from the command to the first step, from the cut to the next
step, and whether the losses are those of a run in one process. Needs root and ``ip``; removes
what it made.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cluster_runs import Run

HOSTS = {"minigpt-a": "10.77.0.1", "minigpt-b": "10.77.0.2"}
HEAD = f"{HOSTS['minigpt-a']}:6399"
NODE = [f"{Path(sys.executable).with_name('ray')}", "start", "--block", "--num-cpus=4"]
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
MESH = {"parallel__data": 2, "cluster__num_workers": 2, "cluster__address": HEAD}


def ip(*words: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *words], check=True)


def on(host: str, command: list[str]) -> list[str]:
    """The command as run on a host, under the host's name."""
    script = f'hostname {host}; exec "$@"'
    return ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", script, "sh", *command]


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Two namespaces that reach each other by address and by name."""
    names = list(HOSTS)
    lines = "".join(f"{address} {name}\n" for name, address in HOSTS.items())
    try:
        for name in names:
            ip("netns", "add", name)
            folder = Path("/etc/netns") / name
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{lines}")
        ip(
            "link",
            "add",
            "eth0",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "eth0",
            "netns",
            names[1],
        )
        for name, address in HOSTS.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
        yield
    finally:
        for name in names:
            listed = subprocess.run(
                ["ip", "netns", "pids", name], check=False, capture_output=True, text=True
            )
            for process in listed.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            (Path("/etc/netns") / name / "hosts").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                (Path("/etc/netns") / name).rmdir()
        with contextlib.suppress(OSError):
            Path("/etc/netns").rmdir()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """A Ray node on each host."""
    environment = os.environ | ENVIRONMENT
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for host, address in HOSTS.items():
            where = (
                ["--head", "--port=6399", "--include-dashboard=false"]
                if not nodes
                else [f"--address={HEAD}"]
            )
            command = on(host, [*NODE, *where, f"--node-ip-address={address}"])
            with (folder / f"{host}.log").open("wb") as log:
                nodes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            wait_for_node(folder / f"{host}.log")
        yield
    finally:
        for node in nodes:
            node.terminate()


def wait_for_node(log: Path) -> None:
    """Until Ray says that it runs."""
    deadline = time.monotonic() + 180
    while "Ray runtime started" not in log.read_text():
        if time.monotonic() > deadline:
            raise RuntimeError(log.read_text())
        time.sleep(0.2)


def main() -> None:
    """Train, cut, and compare."""
    load = os.getloadavg()[0]
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as name, hosts(), cluster(Path(name)):
        folder = Path(name)
        run = Run(
            folder,
            "two-hosts",
            host=on("minigpt-a", []),
            train__steps=100_000,
            checkpoint__every=20,
            **MESH,
        )
        first = run.wait_for_step() - run.started
        while not (run.path / "checkpoints" / "20").is_dir():
            time.sleep(0.1)
        time.sleep(3)
        ip("-n", "minigpt-b", "link", "set", "eth0", "down")
        cut = time.monotonic()
        resumed = run.wait_for_restart(cut) - cut
        time.sleep(3)
        run.stop()
        losses = run.losses()
        said = [f"{moment - cut:+.1f} s {line}" for moment, line in run.lines if moment > cut]
        whole = Run(folder, "whole", processes=2, train__steps=len(losses), parallel__data=2).end()
        figures = {
            "seconds from the command to the first step": first,
            "seconds from the cut to the next step": resumed,
            "steps": len(losses),
            "losses equal": losses == whole.losses(),
            "said after the cut": [line for line in said if " s step " not in line],
            "load before, after": [load, os.getloadavg()[0]],
        }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
