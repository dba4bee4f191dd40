"""``minigpt doctor``."""

import json
import os
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.commands.options import parse_config, take_flag, take_option
from minigpt.errors import MiniGPTError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.config import Config
    from minigpt.doctor.checks import Check
    from minigpt.doctor.facts import Findings


def run(arguments: list[str]) -> None:
    """Check the machine or the cluster and print a line for each check.

    Raises:
        MiniGPTError: a check found an error.
    """
    files, rest = take_option(arguments, "--write", "FILE.yaml")
    as_json, rest = take_flag(rest, "--json")
    config = parse_config(
        rest,
        prog="minigpt doctor",
        description="Check this machine, or with --cluster.num-workers the cluster, before a run. "
        "--json prints JSON. --write FILE.yaml writes what was measured, for minigpt plan "
        "--cluster-spec FILE.yaml.",
    )
    from minigpt.doctor.hardware import hardware
    from minigpt.doctor.judge import judge
    from minigpt.plan.clusters import write_cluster
    from minigpt.train.console import make_console

    # What is said on the way, by Ray too, is not part of the result.
    with redirect_stdout(sys.stderr):
        findings = _examine(config, make_console(stderr=True))
    checks, measured = judge(config, findings), hardware(config, findings)
    if as_json:
        cluster = None if measured is None else asdict(measured)
        print(json.dumps({"checks": [asdict(c) for c in checks], "hardware": cluster}, indent=2))
    else:
        _show(checks, make_console())
    if measured is not None:
        for file in files:
            write_cluster(measured, Path(file), said="Measured by `minigpt doctor`.")
    if failed := [check.name for check in checks if check.level == "error"]:
        raise MiniGPTError(f"{len(failed)} check(s) found an error: {', '.join(failed)}")


def _examine(config: "Config", console: "Console") -> "Findings":
    if config.cluster.num_workers == 0:
        from minigpt.doctor.local import examine

        return examine(config)
    # Read when Ray is imported: else `uv run` gives each worker an environment of its own.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    from minigpt.doctor.ray import examine as examine_cluster

    return examine_cluster(config, console)


def _show(checks: "list[Check]", console: "Console") -> None:
    styles = {"ok": "green", "warning": "yellow", "error": "bold red"}
    from rich.text import Text

    for check in checks:
        text = Text(str(check))
        text.stylize(styles[check.level], 0, len("warning"))
        console.print(text)
