"""The planner's step time against measured ones on this machine, as JSON.

    uv run python benchmarks/planner.py [CASE ...]

For each case `minigpt doctor --write` measures the machine, `minigpt bench` the step, and the plan
is made from what the doctor measured: nothing is fitted to the step. With 8 devices they are
virtual ones that share this machine's cores; a bubble then costs nothing, because the others run
the faster while some wait, and is left out of the prediction.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from minigpt.commands.options import parse_config
from minigpt.data.tokenizer import load_tokenizer
from minigpt.model.sizes import padded_vocabulary
from minigpt.plan.clusters import load_cluster
from minigpt.plan.cost import step_time

SMALL = (
    *("--model.num-layers", "4", "--model.num-heads", "4", "--model.embed-dim", "256"),
    *("--model.seq-length", "256", "--train.global-batch-size", "16"),
)
MEDIUM = (
    *("--model.num-layers", "6", "--model.num-heads", "6", "--model.embed-dim", "384"),
    *("--model.seq-length", "256", "--train.global-batch-size", "8"),
)
DEEP = (
    *("--model.num-layers", "12", "--model.num-heads", "8", "--model.embed-dim", "512"),
    *("--model.seq-length", "128", "--train.global-batch-size", "16"),
)
ONE = ("--parallel.data", "1")
CASES: dict[str, tuple[str, ...]] = {
    "4 x 256": (*SMALL, *ONE),
    "6 x 384": (*MEDIUM, *ONE),
    "12 x 512": (*DEEP, *ONE),
    "6 x 384, remat, 4 microbatches": (
        *(*MEDIUM, *ONE, "--parallel.remat", "layer", "--parallel.microbatches", "4"),
    ),
    "4 x 256, 1 x 8 x 1": (*SMALL, "--parallel.data", "8"),
    "4 x 256, 1 x 2 x 4": (*SMALL, "--parallel.data", "2", "--parallel.model", "4"),
    "4 x 256, 2 x 2 x 2": (
        *(*SMALL, "--parallel.pipe", "2", "--parallel.data", "2", "--parallel.model", "2"),
        *("--parallel.microbatches", "4"),
    ),
    "4 x 256, 4 x 2 x 1": (
        *(*SMALL, "--parallel.pipe", "4", "--parallel.data", "2", "--parallel.microbatches", "8"),
    ),
}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Predicted and measured seconds of a case."""
    options = CASES[name]
    file = folder / f"{name}.yaml"
    _minigpt("doctor", "--write", str(file), "--run.directory", str(folder), *options)
    bench = json.loads(_minigpt("bench", "--json", *options))
    config = parse_config(list(options), prog="", description="")
    vocab = padded_vocabulary(load_tokenizer(config.data.tokenizer).vocab_size)
    parallel = config.parallel
    shape = (parallel.pipe, parallel.data, parallel.model)
    time = step_time(config, shape, vocab, load_cluster(str(file)))
    predicted = time.total - time.bubble
    return {
        "predicted_seconds": predicted,
        "measured_seconds": bench["step_seconds"],
        "ratio": predicted / bench["step_seconds"],
        "parts": {
            part: getattr(time, part)
            for part in ("compute", "optimizer", "bubble", "tensor", "pipe", "data")
        },
    }


def _minigpt(*arguments: str) -> str:
    command = [sys.executable, "-m", "minigpt", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for case in sys.argv[1:] or CASES:
            print(json.dumps({case: measure(case, Path(temporary))}, indent=1), flush=True)
