"""``minigpt bench``."""

import json

from minigpt.commands.options import parse_config, take_flag


def run(arguments: list[str]) -> None:
    """Measure the training step and print the result."""
    as_json, rest = take_flag(arguments, "--json")
    config = parse_config(
        rest,
        prog="minigpt bench",
        description="Measure the training step of a configuration against this machine's own "
        "matrix products. --json prints JSON instead of a table.",
    )
    from minigpt.bench import bench, table
    from minigpt.train.console import make_console

    result = bench(config)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        make_console().print(table(result))
