"""The ``minigpt`` command. Everything slow is imported by the command that needs it."""

import difflib
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence

from minigpt import __version__
from minigpt.errors import ConfigError, MiniGPTError

_COMMANDS = {
    **{name: name for name in ("train", "sample", "compare", "report", "verify", "plan")},
    **{name: name for name in ("bench", "doctor", "data", "serve")},
    "eval": "evaluate",
    "import": "import_gpt2",
    "export": "export_gpt2",
}
"""The module of ``minigpt.commands`` with ``run(arguments)`` of each."""

_BROKEN_PIPE = 141  # what a shell says of a process that SIGPIPE ended

_HELP = """\
usage: minigpt COMMAND [OPTIONS]

Train a GPT in JAX on the hardware you have.

commands:
  train              train on a text; without options a small model on generated stories
  sample RUN         generate text from a run's checkpoint
  serve RUN          serve a run over HTTP: OpenAI's completions, and a page to try it
  eval RUN           loss, perplexity and bits per byte of a run's checkpoint on any text
  compare RUN...     runs side by side: time and money to reach a loss, throughput, curves
  report RUN         write one run as an HTML page that needs no network
  verify             prove a mesh: the same training on one device and on the mesh, compared
  plan               rank the meshes of a cluster by memory, time and cost; draw a pipeline
  bench              measure this machine's training step against its own matrix products
  doctor             check the machine or the cluster before a run
  data fetch NAME    download a public corpus (tinystories)
  import GPT2        make a run of a Hugging Face GPT-2
  export RUN DIR     write a run as a Hugging Face GPT-2

`minigpt COMMAND --help` lists the options of a command.
Exit codes: 0 done, 2 wrong input or configuration, 3 loss or gradients not finite,
143 stopped by SIGTERM with a checkpoint saved (130: by Ctrl-C), 1 anything else.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        print(f"minigpt {__version__}")
        return 0
    _quiet_libraries()
    try:
        importlib.import_module(f"minigpt.commands.{_module_of(arguments[0])}").run(arguments[1:])
        sys.stdout.flush()
    except MiniGPTError as error:
        print(f"minigpt: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever read our output, as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return 0


def _module_of(name: str) -> str:
    if name not in _COMMANDS:
        close = difflib.get_close_matches(name, _COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(_COMMANDS)}"
        raise ConfigError(f"unknown command {name!r}; {hint}")
    return _COMMANDS[name]


def _quiet_libraries() -> None:
    """A user's terminal shows what MiniGPT says; libraries only warn of errors."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="orbax|tensorboardX|google")
