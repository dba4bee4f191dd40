"""What a process measures: this machine's facts, and those of files that tell of others."""

import errno
import os
import socket
import subprocess

import jax
import pytest

from minigpt import __version__
from minigpt.doctor import facts as module
from minigpt.doctor import probes
from minigpt.parallel.mesh import make_mesh


@pytest.fixture
def files(monkeypatch):
    """What files contain; all others are missing."""
    contents = {}
    monkeypatch.setattr(module, "_read", lambda file: contents.get(file, ""))
    return contents


def test_this_machine(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    found = module.node_facts("this process", "here", ("3",))
    assert (found.process, found.node, found.assigned) == ("this process", "here", ("3",))
    assert found.versions["jax"] == jax.__version__
    assert found.versions["minigpt"].startswith(f"{__version__} (source ")
    assert set(found.versions) > {"python", "ray", "numpy", "flax", "optax", "orbax-checkpoint"}
    assert 0 < found.num_cores <= os.cpu_count()
    assert 0 < found.available_bytes <= found.memory_bytes
    assert found.environment["JAX_PLATFORMS"] == "cpu"
    assert "LD_LIBRARY_PATH" not in found.environment


def test_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(module, "_PACKAGES", ("jax", "no-such-package"))
    assert module._versions()["no-such-package"] == "none"


def test_a_container_has_limits(files):
    files["/proc/meminfo"] = "MemTotal: 4096 kB\nMemAvailable:    3072 kB\n"
    assert module._memory()[1] == 3072 * 1024
    files["/sys/fs/cgroup/memory.max"] = "1048576\n"
    files["/sys/fs/cgroup/memory.current"] = "1000000\n"
    assert module._memory() == (1048576, 48576)
    files["/sys/fs/cgroup/cpu.max"] = "50000 100000\n"
    assert module._num_cores() == 0.5
    files["/sys/fs/cgroup/cpu.max"] = "max 100000\n"
    assert module._num_cores() == len(os.sched_getaffinity(0))


def test_the_processor(files):
    files["/proc/cpuinfo"] = "model name\t: EPYC 9\nflags\t\t: fpu avx2 avx512f\nflags\t: x\n"
    assert module._processor() == ("EPYC 9", {"fpu", "avx2", "avx512f"})
    files.clear()
    assert module._processor()[1] == set()


def test_nvidia(monkeypatch):
    def answer(code, out):
        done = subprocess.CompletedProcess([], code, stdout=out)
        monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: done)
        return module._nvidia()

    two = "580.95.05, NVIDIA H200\n580.95.05, NVIDIA H200\n"
    assert answer(0, two) == ("580.95.05", ("NVIDIA H200",) * 2)
    assert answer(9, "NVIDIA-SMI has failed, because\n") == (None, ())
    assert answer(0, "") == (None, ())
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    assert module._nvidia() == (None, ())


def test_the_cudnn_in_memory(files, monkeypatch):
    assert module._cudnn() is None
    files["/proc/self/maps"] = "7f-7f r-xp 0 00:00 1   /venv/nvidia/cudnn/lib/libcudnn.so.9\n"

    class Library:
        def __init__(self, file):
            assert file.endswith("libcudnn.so.9")

        def cudnnGetVersion(self):  # noqa: N802
            return 91002

    monkeypatch.setattr(module.ctypes, "CDLL", Library)
    assert module._cudnn() == ("9.10.2", "/venv/nvidia/cudnn/lib/libcudnn.so.9")


def test_storage_that_works_and_that_does_not(tmp_path):
    directory = tmp_path / "runs" / "deep"
    with probes.left_as_found(directory):
        assert probes.write_probe(directory, "t", 0) is None
        assert probes.write_probe(directory, "t", 1) is None
        assert probes.read_probe(directory, "t", [0, 1]) == []
        assert probes.read_probe(directory, "t", [0, 2]) == [2]
        assert probes.read_probe(directory, "other", [0]) == [0]
        (directory / ".minigpt-doctor-t" / "1").write_text("")  # seen, but not what is in it
        assert probes.read_probe(directory, "t", [0, 1]) == [1]
        assert probes.remove_probe(directory, "t") > 0
    assert not list(tmp_path.iterdir())
    file = tmp_path / "file"
    file.touch()
    assert probes.write_probe(file, "t", 0) == os.strerror(errno.ENOTDIR)
    with probes.left_as_found(tmp_path / "kept"):
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "full").touch()
    assert (tmp_path / "kept").exists()


def test_ports():
    port = probes.open_port()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refused = ("127.0.0.1", closed.getsockname()[1])
        ((number, why),) = probes.cannot_reach([("127.0.0.1", port), refused])
    assert (number, why) == (1, os.strerror(errno.ECONNREFUSED))
    probes.close_ports()
    assert probes.cannot_reach([("127.0.0.1", port)])


def test_links(monkeypatch):
    """The programs add up along one axis, eight times; their time is turned into a rate."""
    from minigpt.doctor import links

    def time(program, message, repeats):
        assert (program(message + 1) == sizes.pop(0) ** 8).all()
        return 8.0 if message.size > 8 else 0.8

    monkeypatch.setattr(links, "best_seconds", time)
    monkeypatch.setattr(links, "_LARGE_BYTES", {"cpu": 4096})
    sizes = [4, 4, 2, 2]
    found = links.measure_links(make_mesh((1, 4, 2)))
    assert [(link.axis, link.size, link.across_processes) for link in found] == [
        ("data", 4, False),
        ("model", 2, False),
    ]
    assert [link.bandwidth_bytes_per_second for link in found] == [4096 * 1.5, 4096]
    assert [link.latency_seconds for link in found] == [0.1, 0.1]
