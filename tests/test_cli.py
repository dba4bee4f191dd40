import json
import re
import subprocess
import sys

import pytest

from minigpt import __version__, cli
from minigpt.config import Config
from minigpt.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    InterruptedRunError,
    MiniGPTError,
    NonFiniteError,
)

# Scripts and recipes rely on these: removing or renaming one is a breaking change.
TRAIN_OPTIONS = """
    run.name run.directory run.resume run.wandb-project
    data.path data.tokenizer data.max-stories data.val-fraction data.shuffle data.no-shuffle
    data.layout
    model.num-layers model.num-heads model.embed-dim model.mlp-dim model.seq-length model.dropout
    model.tie-embeddings model.no-tie-embeddings
    optimizer.learning-rate optimizer.min-learning-rate optimizer.warmup-steps optimizer.schedule
    optimizer.weight-decay optimizer.beta1 optimizer.beta2 optimizer.clip-norm
    train.steps train.global-batch-size train.seed train.compute-dtype train.log-every
    train.eval-every train.eval-rows train.sample-every train.target-loss train.peak-flops
    parallel.pipe parallel.data parallel.model parallel.sequence parallel.no-sequence
    parallel.microbatches parallel.schedule parallel.interleave parallel.zero parallel.remat
    checkpoint.every checkpoint.keep
    cluster.num-workers cluster.devices-per-worker cluster.platform cluster.address
    cluster.storage-path cluster.max-failures cluster.hang-seconds
"""

SAMPLE_OPTIONS = (
    "help prompt max-tokens temperature top-k top-p repetition-penalty seed stop json no-json "
    "parallel"
)

SERVE_OPTIONS = "help host port rows max-requests max-tokens max-body-bytes parallel"

EVAL_OPTIONS = "help data stride batch-size parallel json no-json"

COMPARE_OPTIONS = "help loss price-per-hour cluster-spec png json no-json anyway no-anyway"

REPORT_OPTIONS = "help output png-dir"

COMMANDS = [
    *("train", "sample", "compare", "report", "verify", "plan", "bench", "doctor", "data"),
    *("serve", "eval", "import", "export"),
]

# Lines around messages, drawn in ASCII where the terminal cannot do better.
FRAME = re.compile(r"^[|│] | [|│]$|[╭╮╰╯─]|-{5,}", re.MULTILINE)

HEAVY = {
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax",
    "grain",
    "numpy",
    "tiktoken",
    "tensorboardX",
    "matplotlib",
}


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    """What a command writes by default goes to a temporary folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def minigpt(capsys):
    """Runs a command: the exit code, and its output and errors without frames and line ends."""

    def run(*arguments):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        out, err = (" ".join(FRAME.sub(" ", text).split()) for text in captured)
        assert "Traceback" not in out + err
        return code, out, err

    return run


@pytest.fixture
def refused(minigpt):
    """Runs a command that must be refused, and returns the message."""

    def run(*arguments):
        code, out, err = minigpt(*arguments)
        assert (code, out) == (2, "")
        return err

    return run


@pytest.fixture
def trained(monkeypatch, minigpt):
    """Runs ``minigpt train`` up to the training itself, and returns its configuration."""
    from minigpt.launch import local

    def stop(config, console):
        configs.append(config)
        raise MiniGPTError("stopped before training")

    def run(*arguments):
        code, out, err = minigpt("train", *arguments)
        assert (code, out, err) == (1, "", "minigpt: stopped before training")
        return configs.pop()

    configs = []
    monkeypatch.setattr(local, "train", stop)
    return run


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout


# Help and version


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(minigpt, arguments):
    code, out, err = minigpt(*arguments)
    assert (code, err) == (0, "")
    assert out.startswith("usage: minigpt COMMAND [OPTIONS]")
    for fragment in (*COMMANDS, "fetch NAME", "Exit codes", "143", "--help"):
        assert fragment in out


@pytest.mark.parametrize("argument", ["--version", "-V", "version"])
def test_version(minigpt, argument):
    assert minigpt(argument) == (0, f"minigpt {__version__}", "")


def test_runs_as_a_module():
    def run(argument):
        command = [sys.executable, "-m", "minigpt", argument]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    shown, refused = run("--version"), run("trian")
    assert (shown.returncode, shown.stdout) == (0, f"minigpt {__version__}\n")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "minigpt: unknown command 'trian'; did you mean 'train'?\n"


def test_help_imports_nothing_heavy():
    loaded = run_python(
        "import sys, warnings, logging, os\n"
        "before = (list(warnings.filters), logging.root.handlers[:], dict(os.environ))\n"
        "from minigpt.cli import main\n"
        "assert before == (warnings.filters, logging.root.handlers, dict(os.environ))\n"
        "assert main(['--help']) == main(['--version']) == 0\n"
        "print(*sys.modules)"
    )
    top = {name.partition(".")[0] for name in loaded.splitlines()[-1].split()}
    assert "minigpt" in top
    assert not top & (HEAVY | {"tyro", "yaml", "rich"})


@pytest.mark.parametrize("command", ["train", "eval"])
def test_help_of_a_command_does_not_import_jax(command):
    loaded = run_python(
        "import sys\n"
        "from minigpt.cli import main\n"
        f"try: main(['{command}', '--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "print(*sys.modules)"
    )
    top = {name.partition(".")[0] for name in loaded.splitlines()[-1].split()}
    assert "tyro" in top
    assert not top & HEAVY


@pytest.mark.parametrize("command", [["train"], ["bench"], ["plan"], ["doctor"]])
def test_the_options_of_a_configuration_are_frozen(minigpt, command):
    code, out, err = minigpt(*command, "--help")
    assert (code, err) == (0, "")
    assert f"usage: minigpt {command[0]}" in out
    assert set(re.findall(r"--([a-z]+\.[a-z0-9-]+)", out)) == set(TRAIN_OPTIONS.split())
    assert "--config FILE.yaml" in out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("sample", SAMPLE_OPTIONS),
        ("serve", SERVE_OPTIONS),
        ("eval", EVAL_OPTIONS),
        ("compare", COMPARE_OPTIONS),
        ("report", REPORT_OPTIONS),
    ],
)
def test_the_options_of_a_command_are_frozen(minigpt, command, options):
    code, out, err = minigpt(command, "--help")
    assert (code, err) == (0, "")
    assert set(re.findall(r"--([a-z][a-z0-9-]*)", out)) == set(options.split())


@pytest.mark.parametrize("arguments", [["data", "--help"], ["data", "fetch", "-h"]])
def test_help_of_data(minigpt, arguments):
    code, out, err = minigpt(*arguments)
    assert (code, err) == (0, "")
    for fragment in ("usage: minigpt data fetch", "tinystories", "--directory"):
        assert fragment in out


# Refusals before any work


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["smaple"], "unknown command 'smaple'; did you mean 'sample'?"),
        (["zzz"], f"unknown command 'zzz'; valid: {', '.join(COMMANDS)}"),
        (["--steps"], f"unknown command '--steps'; valid: {', '.join(COMMANDS)}"),
        (["data", "fecth"], "minigpt data: unknown action 'fecth'; valid: fetch"),
        (["data"], "minigpt data: unknown action ''; valid: fetch"),
        (["train", "--config"], "--config needs a value: --config FILE.yaml"),
        (["train", "--train.steps", "3", "--config"], "--config needs a value: --config FILE.yaml"),
    ],
)
def test_refuses_with_the_nearest_valid_name(refused, arguments, message):
    assert refused(*arguments) == f"minigpt: {message}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("unknown", ""),
        ("tinystorie", "Did you mean 'tinystories'?"),
        ("TinyStories", "tinystories"),
    ],
)
def test_refuses_to_fetch_an_unknown_corpus(refused, tmp_path, name, hint):
    message = refused("data", "fetch", name)
    assert message.startswith(f"minigpt: No dataset is called {name!r}.")
    assert hint in message
    assert "Known: tinystories, tinystories-v1" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "fragments"),
    [
        (["--bogus", "3"], ["--bogus"]),
        (["--model.num-layer", "3"], ["--model.num-layer", "Perhaps you meant", "num-layers INT"]),
        (["--num-layers", "3"], ["--num-layers", "--model.num-layers INT"]),
        (["stories.txt"], ["stories.txt"]),
        (["--train.steps"], ["--train.steps"]),
        (["--train.steps", "many"], ["--train.steps", "many"]),
        (["--train.steps", "1.5"], ["--train.steps", "1.5"]),
        (["--optimizer.schedule", "cosin"], ["--optimizer.schedule", "'cosin'", "'cosine'"]),
    ],
)
def test_refuses_options_that_do_not_parse(refused, arguments, fragments):
    message = refused("train", *arguments)
    for fragment in (*fragments, "minigpt train --help"):
        assert fragment in message


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (
            ["--model.num-heads", "3"],
            "model.num_heads must divide model.embed_dim: 128 is not divisible by 3; "
            "the nearest number of heads that works is 2",
        ),
        (
            ["--parallel.microbatches", "3"],
            "parallel.microbatches must divide train.global_batch_size: 8 is not divisible by 3; "
            "the nearest number of microbatches that works is 2",
        ),
        (["--train.steps", "0"], "train.steps must be at least 1, got 0: use 1 or more"),
        (["--data.val-fraction", "1"], "data.val_fraction must be at least 0 and below 1, got 1.0"),
        (["--run.name", "a/b"], "run.name must be a plain folder name"),
        (
            ["--train.target-loss", "2", "--train.eval-every", "0"],
            "train.target_loss is a validation loss and needs an evaluation: it is 2.0",
        ),
    ],
)
def test_a_broken_rule_is_said_once(refused, arguments, rule):
    message = refused("train", *arguments)
    assert message.count(rule) == 1


# Configuration files


def test_options_reach_training(trained):
    config = trained(
        *("--model.num-heads", "3", "--model.embed-dim", "96", "--optimizer.learning-rate", "1e-3"),
        *("--data.no-shuffle", "--data.path", "x.txt", "--train.target_loss=2"),
    )
    assert (config.model.num_heads, config.model.embed_dim) == (3, 96)
    assert (config.optimizer.learning_rate, config.train.target_loss) == (1e-3, 2.0)
    assert (config.data.shuffle, config.data.path) == (False, "x.txt")
    assert trained() == Config()


def test_options_win_over_files_and_later_files_over_earlier(trained, tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(
        "train: {steps: 1, seed: 1, log_every: 1}\ndata: {shuffle: false, path: a.txt}"
    )
    second.write_text("train: {steps: 2, seed: 2}\nmodel: {num_layers: 2}")
    config = trained(
        *("--train.steps", "3", "--config", first, f"--config={second}", "--data.path", "None")
    )
    assert (config.train.steps, config.train.seed, config.train.log_every) == (3, 2, 1)
    assert (config.model.num_layers, config.data.shuffle, config.data.path) == (2, False, None)
    assert trained("--config", second, "--config", first).train.seed == 1
    assert trained("--config", first, "--data.shuffle").data.shuffle is True


def test_a_file_is_checked_before_training(refused, tmp_path):
    missing = tmp_path / "missing.yaml"
    assert refused("train", "--config", missing).startswith(
        f"minigpt: configuration file '{missing}' cannot be read"
    )
    bad = tmp_path / "bad.yaml"
    for text, message in [
        ("modle: {}", "unknown field 'modle'; did you mean 'model'?"),
        ("model: {num_heads: 3}", "model.num_heads must divide model.embed_dim"),
        ("model: {num_heads: two}", "'model.num_heads' must be a whole number, got 'two'"),
    ]:
        bad.write_text(text)
        assert refused("train", f"--config={bad}").startswith(f"minigpt: {bad}: {message}")
        assert refused("bench", "--config", bad).startswith(f"minigpt: {bad}: {message}")


def test_an_option_that_breaks_a_rule_of_the_file_is_refused(refused, tmp_path):
    file = tmp_path / "twelve.yaml"
    file.write_text("train: {global_batch_size: 12}")
    message = refused("train", "--config", file, "--parallel.microbatches", "5")
    assert "12 is not divisible by 5" in message
    assert "that works is 4" in message


# How a command ends


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("why"), 2),
        (DataError("why"), 2),
        (CheckpointError("why"), 2),
        (NonFiniteError("why"), 3),
        (InterruptedRunError("why", signal_number=15), 143),
        (InterruptedRunError("why", signal_number=2), 130),
        (MiniGPTError("why"), 1),
    ],
)
def test_exit_codes(monkeypatch, minigpt, error, code):
    from minigpt.launch import local

    def fail(config, console):
        raise error

    monkeypatch.setattr(local, "train", fail)
    assert minigpt("train") == (code, "", "minigpt: why")


def test_the_end_of_training_says_what_next(monkeypatch, minigpt, tmp_path):
    from minigpt.launch import local
    from minigpt.train.checkpoint import Progress
    from minigpt.train.loop import FitResult
    from minigpt.train.run_directory import RunDirectory

    def finish(config, console):
        result = FitResult(reason="steps", progress=Progress(step=50), val_loss=1.25)
        return local.Outcome(RunDirectory.of(config), result)

    monkeypatch.setattr(local, "train", finish)
    code, out, err = minigpt("train", "--run.name", "mine", "--train.steps", "50")
    assert (code, err) == (0, "")
    for fragment in (
        "finished at step 50 (the last step)",
        "validation loss 1.2500",
        "the run is in runs/mine",
        "minigpt sample runs/mine",
        "minigpt train --run.name mine --train.steps 100",
        "tensorboard --logdir runs/mine/tensorboard",
    ):
        assert fragment in out


def test_the_output_of_sample(monkeypatch, capsys):
    from minigpt.generate import run as module
    from minigpt.generate.text import Choice, Piece

    def generate(run, prompts, settings, parallel, notify):
        assert (settings.max_tokens, settings.temperature, settings.seed) == (5, 0.0, 3)
        assert (settings.repetition_penalty, settings.stop, parallel.model) == (1.2, ("x",), 2)
        notify("for people")
        choice = Choice(0, 0.0, ())
        for text in (" after ", None, "\né"):
            for number, prompt in enumerate(prompts):
                yield number, Piece(prompt if text is None else text, choice, None)

    def sample(*more):
        assert cli.main(["sample", "runs/mine", *options, *more]) == 0
        captured = capsys.readouterr()
        assert captured.err == "for people\n"
        return captured.out

    monkeypatch.setattr(module, "sample_run", generate)
    options = ["--max-tokens", "5", "--temperature", "0", "--seed", "3", "--stop", "x"]
    options += ["--repetition-penalty", "1.2", "--parallel.model", "2"]
    assert sample() == " after \né\n"
    assert sample("--prompt", "a", "b") == "a after a\né\n---\nb after b\né\n---\n"
    lines = sample("--prompt", "a", "b", "--json").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"prompt": prompt, "text": f" after {prompt}\né"} for prompt in ("a", "b")
    ]


# Refusals of the real commands


def test_missing_data_is_refused(refused, tmp_path):
    missing = tmp_path / "nothing.txt"
    message = refused("train", "--data.path", missing)
    assert message.startswith(f"minigpt: data.path '{missing}' does not exist")
    assert "minigpt data fetch tinystories" in message
    assert not (tmp_path / "runs").exists()


def test_a_corpus_too_small_for_a_batch_is_refused(minigpt, tmp_path):
    file = tmp_path / "small.txt"
    file.write_text("a" * 99)
    options = ("--data.path", file, "--data.tokenizer", "byte", "--data.val-fraction", "0")
    sizes = ("--model.seq-length", "15", "--train.global-batch-size", "8")
    code, _, err = minigpt("train", *options, *sizes)
    assert code == 2
    for fragment in (
        f"minigpt: data.path: {file} is too small for one batch",
        "100 training tokens in 6 rows of 16 tokens",  # end-of-text is one
        "train.global_batch_size 8 needs 8 of them (128 tokens)",
        "(up to 6)",
        "model.seq_length",
    ):
        assert fragment in err
    assert not (tmp_path / "runs" / "mini").exists()


def test_sample_of_something_else_is_refused(refused, tmp_path):
    other = tmp_path / "other" / "thing"
    other.mkdir(parents=True)
    assert refused("sample", other) == f"minigpt: '{other}' is not a run directory"
    assert refused("sample", "runs/none") == "minigpt: 'runs/none' is not a run directory"
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.yaml").write_text("")
    assert refused("sample", "runs/none").endswith("not a run directory; runs there: mine")
    assert "mine" in refused("sample", "runs/mine")


@pytest.mark.parametrize(
    ("option", "value"),
    [("temperature", "-1"), ("top-p", "0"), ("top-p", "1.5"), ("top-k", "-1"), ("max-tokens", "0")],
)
def test_settings_of_sample_are_checked(refused, option, value):
    message = refused("sample", "runs/mine", f"--{option}", value)
    assert option.replace("-", "_") in message
    assert value in message


def test_under_uv_run_ray_keeps_its_workers_in_this_environment():
    printed = run_python(
        "import sys, types\n"
        "from minigpt import cli\n"
        "from minigpt.errors import MiniGPTError\n"
        "def train(config, console):\n"
        "    from ray._private import ray_constants\n"
        "    print('rebuilds:', ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV)\n"
        "    raise MiniGPTError('stopped')\n"
        "sys.modules['minigpt.launch.ray'] = types.SimpleNamespace(train=train)\n"
        "cli.main(['train', '--cluster.num-workers', '1'])\n"
    )
    assert printed == "rebuilds: False\n"


def test_a_reader_that_has_had_enough_ends_the_command_quietly():
    program = f"{sys.executable} -m minigpt plan --help | true"
    done = subprocess.run(
        ["bash", "-c", f"{program}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (141, "")
