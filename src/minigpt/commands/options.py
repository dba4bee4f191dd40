"""A training configuration from the command line, and options beside it."""

from pathlib import Path

import tyro

from minigpt.config import Config
from minigpt.config_file import load_config
from minigpt.errors import ConfigError


def parse_config(arguments: list[str], *, prog: str, description: str) -> Config:
    """Defaults, then each ``--config FILE.yaml`` in turn, then the dotted options."""
    files, rest = take_option(arguments, "--config", "FILE.yaml")
    base = Config()
    for file in files:
        base = load_config(Path(file), base=base)
    return tyro.cli(
        Config,
        prog=prog,
        description=f"{description} --config FILE.yaml (may be repeated) reads fields from a "
        "file; options given here win over it.",
        default=base,
        args=rest,
    )


def take_flag(arguments: list[str], flag: str) -> tuple[bool, list[str]]:
    """Whether the flag is there, and the other arguments."""
    return flag in arguments, [argument for argument in arguments if argument != flag]


def take_option(arguments: list[str], option: str, value_name: str) -> tuple[list[str], list[str]]:
    """The values of a repeatable option, and the other arguments."""
    values: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == option:
            value = next(remaining, None)
            if value is None or value.startswith("--"):
                raise ConfigError(f"{option} needs a value: {option} {value_name}")
            values.append(value)
        elif argument.startswith(option + "="):
            values.append(argument.removeprefix(option + "="))
        else:
            rest.append(argument)
    return values, rest
