import dataclasses
import json
import subprocess
import sys

import pytest

from minigpt import cli
from minigpt.config_file import load_config

PIPELINE = ("--parallel.pipe", "4", "--parallel.microbatches", "8")


@pytest.fixture
def plan(monkeypatch, capsys, tmp_path):
    """Runs ``minigpt plan`` in a temporary folder: exit code, output, errors."""

    def run(*arguments):
        code = cli.main(["plan", *map(str, arguments)])
        return code, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return run


def test_draws_the_schedule_of_a_configuration(plan, tmp_path):
    (tmp_path / "pipeline.yaml").write_text("parallel: {pipe: 2, microbatches: 4}")
    code, out, err = plan("--schedule", "--config", "pipeline.yaml", "--parallel.schedule", "gpipe")
    assert (code, err) == (0, "")
    assert out.startswith("gpipe: P = 2 stages, M = 4 microbatches\n")
    assert "stage 1  ..  F0  F1  F2  F3  B0  B1  B2  B3  ..\n" in out
    assert "\x1b" not in out


def test_shows_chunks(plan):
    more = ("--parallel.interleave", "2", "--model.num-layers", "8")
    code, out, err = plan("--schedule", *PIPELINE, *more)
    assert (code, err) == (0, "")
    assert "v = 2 chunks a stage" in out
    assert "stage 0  F0a  F1a  F2a  F3a  F0b" in out


def test_fits_the_terminal(plan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    _, out, _ = plan("--schedule", *PIPELINE)
    assert max(len(line) for line in out.splitlines() if line.startswith("stage")) <= 50
    assert out.count("stage 3") == 2


def test_writes_a_picture(plan, tmp_path):
    code, out, err = plan("--schedule", *PIPELINE, "--png=a picture.png")
    assert (code, err) == (0, "")
    assert out.endswith("\nsaved a picture.png\n")
    assert (tmp_path / "a picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        ((), ("minigpt plan needs --cluster-spec", "minigpt plan --schedule --parallel.pipe 4")),
        (PIPELINE, ("minigpt plan needs --cluster-spec",)),
        (("--cluster-spec", "2xabc"), ("--cluster-spec '2xabc' is neither",)),
        (("--cluster-spec", "laptop", "--top", "x"), ("--top must be a whole number",)),
        (("--cluster-spec", "laptop", "--png", "x.png"), ("--png draws the schedule",)),
        (("--schedule",), ("parallel.pipe is 1", "no pipeline", "parallel.pipe 2 or more")),
        (("--schedule", "--png"), ("--png needs a value: --png FILE.png",)),
        (("--png", "--schedule"), ("--png needs a value: --png FILE.png",)),
        (
            ("--schedule", *PIPELINE, "--png", "missing/x.png"),
            ("--png 'missing/x.png' cannot be written (No such file or directory)",),
        ),
    ],
)
def test_refusals(plan, tmp_path, arguments, fragments):
    code, out, err = plan(*arguments)
    assert (code, out) == (2, "")
    for fragment in fragments:
        assert fragment in err
    assert not list(tmp_path.iterdir())


SMALL = (
    *("--data.tokenizer", "byte", "--model.num-layers", "4", "--model.num-heads", "4"),
    *("--model.embed-dim", "64", "--train.global-batch-size", "16"),
)
CLUSTER = """
nodes: 2
devices_per_node: 2
device_memory: 1e9
peak_flops: {float32: 1e12}
memory_bandwidth: 1e11
inside_node: {bandwidth: 1e10, latency: 1e-5}
between_nodes: {bandwidth: 1e9, latency: 5e-5}
price_per_hour: 3.6
"""


def test_ranks_explains_and_saves_a_recipe(plan, tmp_path):
    (tmp_path / "c.yaml").write_text(CLUSTER)
    spec = ("--cluster-spec", "./c.yaml", *SMALL)
    code, out, err = plan(*spec, "--top", "3", "--explain", "--write", "r.yaml")
    assert (code, err) == (0, "")
    assert "c: 2 node(s) x 2 device(s)" in out
    assert "is the fastest that fits" in out
    assert "saved r.yaml" in out
    code, out, _ = plan(*spec, "--top", "1", "--json")
    [best] = json.loads(out)
    recipe = load_config(tmp_path / "r.yaml")
    assert dataclasses.asdict(recipe.parallel) == best["parallel"]
    assert (recipe.cluster.num_workers, recipe.cluster.devices_per_worker) == (2, 2)
    assert recipe.model.embed_dim == 64
    assert best["step_seconds"]["total"] > 0
    assert best["memory_bytes"]["total"] < 1e9
    code, _, err = plan(*spec, "--write", "r.yaml")
    assert code == 2
    assert "--write r.yaml: the file exists and is kept" in err


def test_nothing_fits(plan, tmp_path):
    (tmp_path / "c.yaml").write_text(CLUSTER.replace("1e9", "1e5", 1))
    code, out, err = plan("--cluster-spec", "./c.yaml", *SMALL, "--explain", "--write", "r.yaml")
    assert code == 2
    assert "Nothing fits. The nearest" in out
    assert "no plan fits, so there is none to save" in err
    code, _, err = plan("--cluster-spec", "./c.yaml", *SMALL)
    assert code == 1
    assert "no plan fits the memory of c" in err


@pytest.mark.slow
def test_the_first_is_compiled_and_compared(tmp_path):
    """In a new process, which makes its own devices."""
    (tmp_path / "c.yaml").write_text(CLUSTER)
    wide = (*SMALL, "--model.embed-dim", "128", "--model.seq-length", "128")
    command = [sys.executable, "-m", "minigpt", "plan", "--cluster-spec", "./c.yaml", *wide]
    done = subprocess.run(
        [*command, "--check"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "state: planned" in done.stdout
    assert "equal" in done.stdout
    assert "DIFFERENT" not in done.stdout


def test_loads_neither_jax_nor_matplotlib_to_print():
    code = (
        "import sys\n"
        "from minigpt.cli import main\n"
        f"assert main(['plan', '--schedule', *{PIPELINE}]) == 0\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    loaded = {name.partition(".")[0] for name in shown.splitlines()[-1].split()}
    assert "rich" in loaded
    assert not loaded & {"jax", "flax", "numpy", "matplotlib", "tensorboardX"}
