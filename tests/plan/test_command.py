import subprocess
import sys

import pytest

from minigpt import cli

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
        ((), ("minigpt plan needs --schedule", "minigpt plan --schedule --parallel.pipe 4")),
        (PIPELINE, ("minigpt plan needs --schedule",)),
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
