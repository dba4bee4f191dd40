import json
import shutil

import pytest

from minigpt.cli import main
from minigpt.data.stories import corpus

OPTIONS = [
    *("--data.tokenizer", "byte", "--model.num-layers", "2", "--model.num-heads", "2"),
    *("--model.embed-dim", "16", "--model.seq-length", "32", "--train.global-batch-size", "8"),
    *("--train.steps", "20", "--train.eval-every", "0", "--train.sample-every", "0"),
    *("--optimizer.learning-rate", "1e-2", "--optimizer.warmup-steps", "2"),
    *("--checkpoint.every", "10"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with checkpoints of steps 10 and 20."""
    folder = tmp_path_factory.mktemp("trained")
    data = folder / "stories.txt"
    data.write_text("".join(corpus(0, 60)))
    where = ["--run.directory", str(folder / "runs"), "--run.name", "tiny"]
    assert main(["train", *where, "--data.path", str(data), *OPTIONS]) == 0
    return folder / "runs" / "tiny"


@pytest.fixture
def sample(capsys, monkeypatch):
    """Runs the command: exit code, output, and what it told people on one line."""
    monkeypatch.setenv("COLUMNS", "1000")

    def run(*arguments):
        capsys.readouterr()
        code = main(["sample", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, " ".join(captured.err.split())

    return run


GREEDY = ("--max-tokens", "20", "--temperature", "0")


def damage(checkpoint):
    for path in checkpoint.glob("*/d/*"):
        path.write_bytes(path.read_bytes()[:20])


def test_every_prompt_is_continued(trained, sample):
    code, out, told = sample(trained, "--prompt", "Once upon", "The", *GREEDY)
    assert code == 0
    first, second, rest = out.split("\n---\n")
    assert rest == ""
    assert first.startswith("Once upon")
    assert second.startswith("The")
    assert len(first) > len("Once upon")
    assert told == f"{trained}: step 20"
    assert (code, out, told) == sample(trained, "--prompt", "Once upon", "The", *GREEDY)


def test_json_is_one_object_for_each_prompt(trained, sample):
    _, plain, _ = sample(trained, "--prompt", "Once upon", "The", *GREEDY)
    code, out, _ = sample(trained, "--prompt", "Once upon", "The", *GREEDY, "--json")
    objects = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [fields["prompt"] for fields in objects] == ["Once upon", "The"]
    assert "".join(f"{o['prompt']}{o['text']}\n---\n" for o in objects) == plain


def test_sampling_leaves_the_run_as_it_is(trained, sample):
    def files():
        return {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}

    before = files()
    assert sample(trained, *GREEDY)[0] == 0
    assert files() == before


def test_an_older_checkpoint_is_used_and_the_user_is_told(trained, sample, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    damage(run / "checkpoints" / "20")
    code, out, told = sample(run, "--prompt", "Once upon", *GREEDY)
    assert code == 0
    assert out.startswith("Once upon")
    assert "the checkpoint of step 20 cannot be read" in told
    assert told.endswith(": step 10")
    assert (run / "checkpoints" / "20").is_dir()


def test_no_readable_checkpoint_is_refused(trained, sample, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    damage(run / "checkpoints" / "10")
    damage(run / "checkpoints" / "20")
    code, out, told = sample(run, *GREEDY)
    assert (code, out) == (2, "")
    assert "none of the 2 checkpoints" in told


def test_a_missing_run_is_refused(trained, sample):
    code, out, told = sample(trained.parent / "other", *GREEDY)
    assert (code, out) == (2, "")
    assert told.endswith("is not a run directory; runs there: tiny")


def test_text_longer_than_the_context_is_told_apart_from_the_output(trained, sample):
    code, out, told = sample(trained, "--prompt", "A", "--max-tokens", "70", "--json", "--seed", 3)
    assert code == 0
    assert len(out.splitlines()) == 1
    assert json.loads(out)["prompt"] == "A"
    assert "context of 32 tokens" in told
