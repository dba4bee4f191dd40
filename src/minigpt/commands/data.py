"""``minigpt data``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tyro
from tyro.conf import Positional

from minigpt.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class FetchArguments:
    """Download a public corpus; an interrupted download continues."""

    name: Positional[str]
    """tinystories (version 2, by GPT-4) or tinystories-v1."""
    directory: Path = Path("datasets")
    """Folder to put the files in."""


def run(arguments: list[str]) -> None:
    """Fetch a corpus."""
    from minigpt.data.datasets import dataset
    from minigpt.data.fetch import fetch
    from minigpt.train.console import byte_progress, make_console

    if arguments and arguments[0] in ("-h", "--help"):
        arguments = ["fetch", "--help"]
    if not arguments or arguments[0] != "fetch":
        given = arguments[0] if arguments else ""
        raise ConfigError(f"minigpt data: unknown action {given!r}; valid: fetch")
    options = tyro.cli(FetchArguments, prog="minigpt data fetch", args=arguments[1:])
    console = make_console()
    shows: dict[str, Callable[[int, int], None]] = {}

    def show(file: str, done: int, total: int) -> None:
        shows.setdefault(file, byte_progress(console, file))(done, total)

    files = fetch(dataset(options.name), options.directory, progress=show)
    console.print(f"saved {', '.join(map(str, files))}")
    console.print(f"next: minigpt train --data.path {files[0]} --run.name {options.name}")
