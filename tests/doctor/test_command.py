"""``minigpt doctor`` on this machine and on a small cluster, from options to exit codes."""

import json
import subprocess
import sys

import pytest
import yaml
from doctor.made_up import node

from minigpt import bench, cli
from minigpt.doctor import local
from minigpt.doctor.facts import Findings
from minigpt.errors import ConfigError
from minigpt.plan.clusters import load_cluster

MODEL = ("--data.tokenizer", "byte", "--model.num-layers", "2")
MESH = ("--parallel.data", "2", "--parallel.model", "2")


@pytest.fixture
def doctor(monkeypatch, capsys, tmp_path):
    """Runs ``minigpt doctor`` in a temporary folder: exit code, output, errors."""

    def run(*arguments):
        code = cli.main(["doctor", *MODEL, *map(str, arguments)])
        return code, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "MATMUL_SIZES", (32, 64))
    monkeypatch.setattr(bench, "ELEMENTS", 4096)
    return run


def by_name(out):
    return {check["name"]: check for check in json.loads(out)["checks"]}


def test_a_mesh_on_this_machine(doctor, tmp_path):
    code, out, err = doctor(*MESH, "--json", "--write", "hardware.yaml")
    assert (code, err) == (0, "")
    checks = by_name(out)
    assert list(checks) == [
        *("versions", "environment", "processor", "memory", "storage", "space", "devices"),
        *("matrix products", "link data", "link model"),
    ]
    assert "8 cpu" in checks["devices"]["found"]
    assert "between 2 devices of a worker" in checks["link model"]["found"]
    measured = yaml.safe_load((tmp_path / "hardware.yaml").read_text())
    assert measured == json.loads(out)["hardware"]
    cluster = load_cluster("./hardware.yaml")
    assert (cluster.nodes, cluster.devices_per_node, cluster.platform) == (1, 8, "cpu")
    assert cluster.matrix_flops.float32 > 0
    assert cluster.memory_bandwidth > 0
    assert cluster.inside_node.bandwidth > 0
    assert cluster.inside_node.latency > 0
    assert cluster.between_nodes is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["hardware.yaml"]


def test_lines(doctor):
    code, out, err = doctor("--parallel.data", "1")
    assert (code, err) == (0, "")
    assert all(line.startswith(("OK  ", "warning  ")) for line in out.splitlines())
    assert "OK       storage          runs: written and read back by all\n" in out
    assert "link" not in out


def test_json_is_all_that_is_printed(doctor, monkeypatch):
    def examine(config):
        print("(raylet) something happened")
        return Findings(driver=node())

    monkeypatch.setattr(local, "examine", examine)
    code, out, err = doctor("--json")
    assert (code, err) == (0, "(raylet) something happened\n")
    assert list(by_name(out)) == ["versions"]


def test_errors_are_told_and_counted(doctor, tmp_path):
    (tmp_path / "runs").touch()
    code, out, err = doctor("--cluster.platform", "cuda", "--parallel.data", "8")
    assert code == 1
    assert err == "minigpt: 2 check(s) found an error: storage, devices\n"
    assert "ERROR    storage          runs: Not a directory; use a run.directory" in out
    assert "ERROR    devices          cluster.platform is cuda, but this process has 8 cpu" in out
    code, out, _ = doctor("--parallel.data", "16", "--train.global-batch-size", "16", "--json")
    assert code == 1
    assert "1 x 16 x 1 = 16 with 8 device(s)" in by_name(out)["mesh"]["found"]


def test_jax_without_devices(doctor, monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(local.jax, "device_count", fail)
    code, out, err = doctor("--json", "--cluster.platform", "cuda")
    assert (code, err) == (1, "minigpt: 1 check(s) found an error: devices\n")
    assert "Unable to initialize" in by_name(out)["devices"]["found"]
    assert json.loads(out)["hardware"] is None


def test_refusals(doctor):
    code, out, err = doctor("--write")
    assert (code, out) == (2, "")
    assert "--write needs a value: --write FILE.yaml" in err
    code, _, err = doctor("--parallel.data", "1", "--write", "missing/x.yaml")
    assert code == 2
    assert "--write 'missing/x.yaml' cannot be written (No such file or directory)" in err


@pytest.mark.slow  # imports Ray Train
@pytest.mark.parametrize("kind", [ConfigError, Exception])
def test_a_cluster_that_does_not_answer(doctor, monkeypatch, kind):
    from minigpt.doctor import ray

    def refuse(cluster, console):
        raise kind(f"no Ray cluster answers at {cluster.address!r}")

    monkeypatch.setattr(ray, "connect", refuse)
    address = ("--cluster.num-workers", "2", "--cluster.address", "10.0.0.1:6379")
    code, out, err = doctor(*address)
    assert (code, err) == (1, "minigpt: 1 check(s) found an error: runtime\n")
    assert "ERROR    runtime          no Ray cluster answers at '10.0.0.1:6379'\n" in out


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_two_workers(tmp_path):
    """In a new process: Ray's workers and jax's runtime are not to meet those of the tests."""
    options = (*MODEL, "--cluster.num-workers", "2", "--json")
    command = [sys.executable, "-m", "minigpt", "doctor", *options]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checks = by_name(done.stdout)
    assert "equal in 3 processes" in checks["versions"]["found"]
    for name, found in (
        ("resources", "1 node(s) with 4 CPU(s)"),
        ("storage", f"{tmp_path / 'runs'}: written and read back"),
        ("clock", "0 ms between workers"),
        ("ports", "each of 2 worker(s)"),
        ("runtime", "2 worker(s) joined one jax runtime"),
        ("devices", "worker 1 on "),
        ("link data", "between 2 workers"),
    ):
        assert checks[name]["level"] == "ok"
        assert found in checks[name]["found"]
    measured = json.loads(done.stdout)["hardware"]
    assert (measured["nodes"], measured["devices_per_node"]) == (2, 1)
    assert measured["between_nodes"]["bandwidth"] > 0
    assert "starting 2 worker(s)" in done.stderr
    assert not list(tmp_path.iterdir())
