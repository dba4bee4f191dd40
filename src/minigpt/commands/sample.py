"""``minigpt sample``."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from tyro.conf import Positional

from minigpt.config import ParallelConfig

if TYPE_CHECKING:
    from minigpt.generate.text import Piece


@dataclass(frozen=True, kw_only=True)
class SampleArguments:
    """Generate text from the newest checkpoint of a run."""

    run: Positional[Path]
    """The run directory, for example runs/mini."""
    prompt: tuple[str, ...] = ("",)
    """One or more texts to continue; an empty one starts a new story."""
    max_tokens: int = 200
    """New tokens for each prompt; a story may end sooner."""
    temperature: float = 0.8
    """Divides the logits; 0: always the most likely token."""
    top_k: int = 0
    """Choose among this many most likely tokens; 0: all."""
    top_p: float = 1.0
    """Choose among the most likely tokens that together have this probability."""
    repetition_penalty: float = 1.0
    """Above 1: tokens that the text has already become less likely; 1.1 to 1.3 are usual."""
    seed: int = 0
    """The same seed, prompts and settings give the same text."""
    stop: tuple[str, ...] = ()
    """Texts that end the continuation."""
    json: bool = False
    """Print one JSON object for each prompt instead of text."""
    parallel: ParallelConfig = field(default_factory=lambda: ParallelConfig(data=1))
    """The mesh to generate on."""


def run(arguments: list[str]) -> None:
    """Generate text and print it: as it comes where there is one prompt."""
    options = tyro.cli(SampleArguments, prog="minigpt sample", args=arguments)
    from minigpt.generate.run import sample_run
    from minigpt.generate.sampling import SamplingConfig
    from minigpt.parallel.mesh import use_virtual_devices
    from minigpt.train.console import make_console

    settings = SamplingConfig(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        stop=options.stop,
    )
    use_virtual_devices(options.parallel)
    notify = make_console(stderr=True).print
    pieces = sample_run(options.run, options.prompt, settings, options.parallel, notify)
    if len(options.prompt) == 1 and not options.json:
        _print_as_it_comes(options.prompt[0], pieces)
    else:
        _print_whole(options, pieces)


def _print_as_it_comes(prompt: str, pieces: "Iterator[tuple[int, Piece]]") -> None:
    before = prompt  # nothing is printed where generation fails at once
    for _, piece in pieces:
        print(before + piece.text, end="", flush=True)
        before = ""
    print()


def _print_whole(options: SampleArguments, pieces: "Iterator[tuple[int, Piece]]") -> None:
    texts = [""] * len(options.prompt)
    for number, piece in pieces:
        texts[number] += piece.text
    for prompt, text in zip(options.prompt, texts, strict=True):
        if options.json:
            print(json.dumps({"prompt": prompt, "text": text}, ensure_ascii=False))
        else:
            print(f"{prompt}{text}\n---")
