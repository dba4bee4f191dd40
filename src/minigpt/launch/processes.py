"""Several processes on this machine, joined into one jax runtime: a cluster in small.

On a CPU, with gloo between them. To prove that a program does not depend on how its devices are
spread over processes, it needs no more than this.
"""

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import jax

from minigpt.errors import MiniGPTError
from minigpt.launch.runtime import SHUTDOWN_SECONDS, join_runtime


def run_in_processes(
    function: Callable[..., Any],
    *arguments: Any,  # noqa: ANN401
    num_processes: int,
    devices_per_process: int,
) -> list[Any]:
    """Call ``function(*arguments)`` in each of several new processes, and wait.

    Args:
        function: of an importable module, as its arguments and results are pickled.
        arguments: the same for all.
        num_processes: processes of the runtime.
        devices_per_process: virtual CPU devices of each.

    Returns:
        What each returned, in the order of ``jax.process_index()``.

    Raises:
        MiniGPTError: the one a process raised, or that one died; the others are stopped.
    """
    context = multiprocessing.get_context("spawn")
    address = f"127.0.0.1:{_free_port()}"
    started: dict[Connection, BaseProcess] = {}
    for rank in range(num_processes):
        ours, theirs = context.Pipe(duplex=False)
        join = partial(
            join_runtime,
            address,
            num_processes,
            rank,
            platform="cpu",
            num_devices=devices_per_process,
        )
        process = context.Process(
            target=_enter, args=(theirs, join, function, arguments), daemon=True
        )
        process.start()
        theirs.close()
        started[ours] = process
    try:
        return _collect(started)
    finally:
        for process in started.values():
            process.kill()
            process.join()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _enter(
    results: Connection,
    join: Callable[[], None],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    """What a new process runs: sends ("done", result) or ("failed", error)."""
    _silence_gloo()
    try:
        join()
        results.send(("done", function(*arguments)))
        jax.distributed.shutdown()
    except MiniGPTError as error:
        results.send(("failed", error))
    except Exception:  # noqa: BLE001 - the parent raises it
        results.send(("failed", MiniGPTError(traceback.format_exc())))


def _silence_gloo() -> None:
    """Gloo writes a line for each connection to the C standard output; Python keeps its own."""
    ours = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = os.fdopen(ours, "w", buffering=1)


def _collect(started: dict[Connection, BaseProcess]) -> list[Any]:
    """Results in order; the first failure ends the waiting."""
    found: dict[Connection, Any] = {}
    while len(found) < len(started):
        for ready in wait([connection for connection in started if connection not in found]):
            assert isinstance(ready, Connection)
            try:
                kind, value = ready.recv()
            except EOFError:
                process = started[ready]
                process.join()
                rank = list(started).index(ready)
                raise MiniGPTError(
                    f"process {rank} of {len(started)} died with exit code {process.exitcode}"
                ) from None
            if kind == "failed":
                raise value
            found[ready] = value
    for process in started.values():
        process.join(SHUTDOWN_SECONDS)
    return [found[connection] for connection in started]
