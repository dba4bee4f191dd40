"""The ``minigpt`` command. Everything slow is imported by the command that needs it."""

import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt import __version__
from minigpt.errors import ConfigError, MiniGPTError

if TYPE_CHECKING:
    from rich.console import Console

    from minigpt.config import Config
    from minigpt.launch.local import Outcome

_HELP = """\
usage: minigpt COMMAND [OPTIONS]

Train a GPT in JAX on the hardware you have.

commands:
  train              train on a text; without options a small model on generated stories
  sample RUN         generate text from a run's checkpoint
  verify             prove a mesh: the same training on one device and on the mesh, compared
  bench              measure this machine's training step against its own matrix products
  data fetch NAME    download a public corpus (tinystories)

`minigpt COMMAND --help` lists the options of a command.
Exit codes: 0 done, 2 wrong input or configuration, 3 loss or gradients not finite,
143 stopped by SIGTERM with a checkpoint saved (130: by Ctrl-C), 1 anything else.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": _train,
        "sample": _sample,
        "verify": _verify,
        "bench": _bench,
        "data": _data,
    }
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        print(f"minigpt {__version__}")
        return 0
    _quiet_libraries()
    try:
        if arguments[0] not in commands:
            raise ConfigError(_unknown(arguments[0], commands, "command"))
        commands[arguments[0]](arguments[1:])
    except MiniGPTError as error:
        print(f"minigpt: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _unknown(name: str, valid: Iterable[str], what: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(valid), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(valid)}"
    return f"unknown {what} {name!r}; {hint}"


def _quiet_libraries() -> None:
    """A user's terminal shows what MiniGPT says; libraries only warn of errors."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="orbax|tensorboardX|google")


def _train(arguments: list[str]) -> None:
    config = _parse_config(arguments, prog="minigpt train", description="Train a GPT.")
    from minigpt.launch import local
    from minigpt.train.console import make_console

    console = make_console()
    outcome = local.train(config, console)
    _say_how_it_ended(outcome, console)


def _parse_config(arguments: list[str], *, prog: str, description: str) -> "Config":
    """Defaults, then each ``--config FILE.yaml`` in turn, then the dotted options."""
    import tyro

    from minigpt.config import Config
    from minigpt.config_file import load_config

    files, rest = _take_option(arguments, "--config")
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


def _take_option(arguments: list[str], option: str) -> tuple[list[str], list[str]]:
    """The values of a repeatable option, and the other arguments."""
    values: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == option:
            value = next(remaining, None)
            if value is None or value.startswith("--"):
                raise ConfigError(f"{option} needs a value: {option} FILE.yaml")
            values.append(value)
        elif argument.startswith(option + "="):
            values.append(argument.removeprefix(option + "="))
        else:
            rest.append(argument)
    return values, rest


def _say_how_it_ended(outcome: "Outcome", console: "Console") -> None:
    result, run = outcome.result, outcome.directory.path
    reached = "the target loss" if result.reason == "target_loss" else "the last step"
    val = "" if result.val_loss is None else f"; validation loss {result.val_loss:.4f}"
    console.print(
        f"\nfinished at step {result.progress.step} ({reached}) after "
        f"{result.progress.elapsed_seconds:.0f} s{val}\n"
        f"the run is in {run}\n\n"
        "what next:\n"
        f"  minigpt sample {run} --prompt 'Once upon a time'\n"
        f"  minigpt train --run.name {run.name} --train.steps {2 * result.progress.step}   "
        "(train longer, with the same options)\n"
        "  minigpt train --data.path YOUR_TEXT.txt --run.name mine\n"
        f"  tensorboard --logdir {run / 'tensorboard'}",
    )


def _sample(arguments: list[str]) -> None:
    import json

    import tyro

    from minigpt.cli_arguments import SampleArguments

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


def _bench(arguments: list[str]) -> None:
    as_json = "--json" in arguments
    config = _parse_config(
        [argument for argument in arguments if argument != "--json"],
        prog="minigpt bench",
        description="Measure the training step of a configuration against this machine's own "
        "matrix products. --json prints JSON instead of a table.",
    )
    from minigpt.bench import bench, table
    from minigpt.train.console import make_console

    result = bench(config)
    if as_json:
        import json

        print(json.dumps(result, indent=2))
    else:
        make_console().print(table(result))


def _verify(arguments: list[str]) -> None:
    import tyro

    from minigpt.cli_arguments import VerifyArguments

    options = tyro.cli(VerifyArguments, prog="minigpt verify", args=arguments)
    import jax

    from minigpt.parallel.mesh import mesh_shape, use_virtual_devices
    from minigpt.train.console import make_console
    from minigpt.verify import Verdict, all_meshes, describe, table, verify

    console = make_console()
    use_virtual_devices(replace(options.parallel, data=options.devices) if options.all
                        else options.parallel)  # fmt: skip
    if options.all:
        meshes = list(all_meshes(options.devices, options.parallel.microbatches))
    else:
        pipe, data, model = mesh_shape(options.parallel, jax.device_count())
        meshes = [replace(options.parallel, pipe=pipe, data=data, model=model)]

    def show(verdict: Verdict) -> None:
        if not options.all:
            console.print(table(verdict))
            return
        worst = verdict.differences
        console.print(
            f"{'equal  ' if verdict.ok else 'DIFFERS'}  {describe(verdict.parallel):<52}"
            f"loss {worst['loss of each step, relative']:.1e}  "
            f"parameters {worst['final parameters']:.1e}"
        )

    verdicts = verify(meshes, steps=options.steps, dropout=options.dropout, notify=show)
    differing = [describe(verdict.parallel) for verdict in verdicts if not verdict.ok]
    if differing:
        raise MiniGPTError(
            f"{len(differing)} mesh(es) train something else: {'; '.join(differing)}"
        )
    console.print(f"{len(verdicts)} mesh(es) train what one device trains")


def _data(arguments: list[str]) -> None:
    import tyro

    from minigpt.cli_arguments import FetchArguments
    from minigpt.data.datasets import dataset
    from minigpt.data.fetch import fetch
    from minigpt.train.console import byte_progress, make_console

    if arguments and arguments[0] in ("-h", "--help"):
        arguments = ["fetch", "--help"]
    if not arguments or arguments[0] != "fetch":
        given = arguments[0] if arguments else ""
        raise ConfigError(f"minigpt data: {_unknown(given, ['fetch'], 'action')}")
    options = tyro.cli(FetchArguments, prog="minigpt data fetch", args=arguments[1:])
    console = make_console()
    shows: dict[str, Callable[[int, int], None]] = {}

    def show(file: str, done: int, total: int) -> None:
        shows.setdefault(file, byte_progress(console, file))(done, total)

    files = fetch(dataset(options.name), options.directory, progress=show)
    console.print(f"saved {', '.join(map(str, files))}")
    console.print(f"next: minigpt train --data.path {files[0]} --run.name {options.name}")
