"""``minigpt import``."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from tyro.conf import Positional


@dataclass(frozen=True, kw_only=True)
class ImportArguments:
    """Make a run of the weights of a Hugging Face GPT-2."""

    source: Positional[Path]
    """A folder with config.json and safetensors, or the safetensors file beside a config.json."""
    run: Path = Path("runs/gpt2")
    """The run directory to make; nothing may be there."""


def run(arguments: list[str]) -> None:
    """Import and say how to go on."""
    options = tyro.cli(ImportArguments, prog="minigpt import", args=arguments)
    from minigpt.huggingface.runs import import_run

    model = import_run(options.source, options.run).model
    print(
        f"{options.run}: {model.num_layers} layers x {model.embed_dim}, "
        f"{model.seq_length} tokens of context, step 0\n"
        f"  minigpt sample {options.run} --prompt 'Once upon a time'\n"
        f"  minigpt train --config {options.run}/config.yaml --data.path YOUR_TEXT"
    )
