"""``minigpt export``."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from tyro.conf import Positional


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """Write the newest checkpoint of a run as a Hugging Face GPT-2, tokenizer included."""

    run: Positional[Path]
    """The run directory, for example runs/mini."""
    folder: Positional[Path]
    """The folder to write; nothing may be there."""


def run(arguments: list[str]) -> None:
    """Export and say how to load it."""
    options = tyro.cli(ExportArguments, prog="minigpt export", args=arguments)
    from minigpt.huggingface.runs import export_run
    from minigpt.train.console import make_console

    step = export_run(options.run, options.folder, make_console(stderr=True).print)
    print(
        f"{options.folder}: step {step} of {options.run}\n"
        f'  transformers.AutoModelForCausalLM.from_pretrained("{options.folder}")'
    )
