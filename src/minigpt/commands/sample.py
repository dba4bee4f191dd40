"""``minigpt sample``."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro
from tyro.conf import Positional


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
    seed: int = 0
    """The same seed, prompts and settings give the same text."""
    json: bool = False
    """Print one JSON object for each prompt instead of text."""


def run(arguments: list[str]) -> None:
    """Generate text and print it."""
    options = tyro.cli(SampleArguments, prog="minigpt sample", args=arguments)
    from minigpt.generate.run import sample_run
    from minigpt.generate.sampler import SamplingConfig
    from minigpt.train.console import make_console

    settings = SamplingConfig(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
    )
    texts = sample_run(options.run, options.prompt, settings, make_console(stderr=True).print)
    for prompt, text in zip(options.prompt, texts, strict=True):
        if options.json:
            print(json.dumps({"prompt": prompt, "text": text}, ensure_ascii=False))
        else:
            print(prompt + text + ("\n---" if len(texts) > 1 else ""))
