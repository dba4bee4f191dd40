"""Probes between processes: files on the storage they share, and connections to each other."""

import shutil
import socket
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

_CONNECT_SECONDS = 5
_PREFIX = ".minigpt-doctor-"


@contextmanager
def left_as_found(directory: Path) -> Generator[None]:
    """Takes folders away that were made meanwhile and are empty."""
    missing = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        yield
    finally:
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()


def write_probe(directory: Path, token: str, rank: int) -> str | None:
    """Write this process's file of a probe; why it could not, if it could not."""
    folder = directory / f"{_PREFIX}{token}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(rank)).write_text(token)
    except OSError as error:
        return error.strerror or str(error)
    return None


def read_probe(directory: Path, token: str, ranks: Sequence[int]) -> list[int]:
    """The processes of ``ranks`` whose files cannot be read here."""

    def there(rank: int) -> bool:
        try:
            return (directory / f"{_PREFIX}{token}" / str(rank)).read_text() == token
        except OSError:
            return False

    return [rank for rank in ranks if not there(rank)]


def remove_probe(directory: Path, token: str) -> int | None:
    """Take the probe's files away; the free bytes of the storage, if it exists."""
    shutil.rmtree(directory / f"{_PREFIX}{token}", ignore_errors=True)
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return None


_listeners: list[socket.socket] = []


def open_port() -> int:
    """Listen on a free port until ``close_ports``; the kernel answers whoever connects."""
    listener = socket.create_server(("", 0), backlog=1024)
    _listeners.append(listener)
    return listener.getsockname()[1]


def close_ports() -> None:
    """Stop listening."""
    while _listeners:
        _listeners.pop().close()


def cannot_reach(addresses: Sequence[tuple[str, int]]) -> list[tuple[int, str]]:
    """The positions of addresses that this process cannot connect to, and why."""

    def attempt(address: tuple[str, int]) -> str | None:
        try:
            socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            return error.strerror or str(error)
        return None

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(attempt, addresses))
    return [(number, why) for number, why in enumerate(answers) if why is not None]
