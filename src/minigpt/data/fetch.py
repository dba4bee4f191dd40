"""Downloads of public text corpora by name, resumable and verified.

A download is written to ``FILE.part``, with the server's validators in ``FILE.part.json``,
and becomes ``FILE`` once its size, and its SHA-256 where the server states one, are right.
Whatever stops it before that, the next call resumes it.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPResponse
from http.client import HTTPMessage as Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, Request, build_opener

from minigpt.data.datasets import HUB, Dataset
from minigpt.errors import DataError

_HEADERS = {"User-Agent": "minigpt", "Accept-Encoding": "identity"}
_TRANSIENT = {408, 416, 425, 429, 500, 502, 503, 504}
_MAX_WAIT_S = 30.0
_CHUNK_BYTES = 1 << 20

type Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes on disk so far and the bytes in all."""


def fetch(
    dataset: Dataset,
    directory: Path,
    *,
    progress: Progress = lambda name, done, total: None,
    attempts: int = 5,
    backoff_s: float = 1.0,
    timeout_s: float = 30.0,
) -> list[Path]:
    """Downloads the files of a corpus that ``directory`` does not hold already.

    ``HF_ENDPOINT`` in the environment replaces ``https://huggingface.co``, for a mirror.

    Args:
        dataset: what to download.
        directory: where to; created if it is missing.
        progress: called after every chunk.
        attempts: failures in a row without a new byte after which to give up.
        backoff_s: seconds before the second attempt; doubles up to 30.
        timeout_s: seconds without a byte after which an attempt has failed.

    Raises:
        DataError: the server cannot be reached or has no such file, the disk cannot be
            written, or what arrived has the wrong size or checksum.
    """
    base = dataset.base_url
    if (endpoint := os.environ.get("HF_ENDPOINT")) and base.startswith(f"{HUB}/"):
        base = endpoint.rstrip("/") + base.removeprefix(HUB)
    if not base.startswith(("http://", "https://")):
        raise DataError(f"HF_ENDPOINT must be like {HUB}, but the URL becomes {base!r}.")
    with _disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    targets = [directory / name for name in dataset.files]
    for target in targets:
        download = _Download(base + quote(target.name), target, progress, timeout_s)
        download.run(attempts, backoff_s)
    return targets


@dataclass(frozen=True, slots=True)
class _Remote:
    """What the server states about a file: bytes, and the SHA-256 in hex if it does."""

    size: int
    sha256: str | None

    def mismatch(self, path: Path) -> str:
        """Names how a local file differs; empty if it does not."""
        if (size := _size(path)) != self.size:
            return f"{size} bytes, but the server states {self.size}"
        if self.sha256 is None:
            return ""
        with _disk_errors(path), path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found == self.sha256:
            return ""
        return f"the SHA-256 {found}, but the server states {self.sha256}"


class _StopAtLinkedFile(HTTPRedirectHandler):
    """Follows the redirects of a HEAD up to the one that describes the linked file."""

    def redirect_request(
        self,
        req: Request,
        fp: Any,  # noqa: ANN401 - whatever urllib holds
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> Request | None:
        if "X-Linked-Size" in headers:
            return None
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None:
            request.method = "HEAD"  # urllib would go on with a GET
        return request


class _Download:
    """One file on its way from ``url`` to ``target``."""

    def __init__(self, url: str, target: Path, progress: Progress, timeout_s: float) -> None:
        self.url = url
        self.target = target
        self.part = target.with_name(f"{target.name}.part")
        self.record = target.with_name(f"{target.name}.part.json")
        self.progress = progress
        self.timeout_s = timeout_s

    def run(self, attempts: int, backoff_s: float) -> None:
        """Tries until the file is complete and verified."""
        failures, furthest = 0, _size(self.part)
        while True:
            try:
                return self._attempt()
            except HTTPError as error:
                error.close()
                if error.code == 416:  # the file there now is shorter than the partial file
                    self._discard()
                if error.code not in _TRANSIENT:
                    raise DataError(
                        f"{self.url}: the server answered {error.code} ({error.reason}). Look "
                        "whether the file has moved, set HF_ENDPOINT to a mirror or unset it, "
                        f"or put a copy from elsewhere in place as {self.target}."
                    ) from error
                cause: Exception = error
            except (OSError, HTTPException) as error:  # of the network: see _disk_errors
                cause = error
            # Only bytes beyond the furthest count: a server that cannot resume must not loop.
            failures = 1 if _size(self.part) > furthest else failures + 1
            furthest = max(furthest, _size(self.part))
            if failures >= attempts:
                raise DataError(
                    f"{self.url}: {failures} attempts in a row brought nothing new, the last "
                    f"with {cause!r}. Check the network or set HF_ENDPOINT to a mirror. The "
                    f"same command resumes from the {_size(self.part)} bytes in {self.part}."
                ) from cause
            time.sleep(min(backoff_s * 2 ** (failures - 1), _MAX_WAIT_S))

    def _attempt(self) -> None:
        remote = self._look_up()
        if not remote.mismatch(self.target):
            self.progress(self.target.name, remote.size, remote.size)
            return
        if not self._resume_headers(remote) or _size(self.part) < remote.size:
            self._receive(remote)
        if mismatch := remote.mismatch(self.part):
            self._discard()
            raise DataError(
                f"{self.url} arrived with {mismatch}. The download was removed; {self.target} "
                "is as it was. Run the command again, or set HF_ENDPOINT to another mirror."
            )
        with _disk_errors(self.target):
            self.part.replace(self.target)
        self._discard()

    def _look_up(self) -> _Remote:
        """Asks for size and SHA-256, which the hub states before it redirects."""
        request = Request(self.url, headers=_HEADERS, method="HEAD")
        opener = build_opener(_StopAtLinkedFile)
        try:
            with opener.open(request, timeout=self.timeout_s) as response:
                headers = response.headers
        except HTTPError as error:
            if error.code >= 400 or "X-Linked-Size" not in error.headers:
                raise
            error.close()
            headers = error.headers
        size = headers.get("X-Linked-Size", headers.get("Content-Length", ""))
        if not size.isdecimal() or int(size) == 0:
            raise DataError(
                f"{self.url}: a download is verified by its size, but the server states "
                f"{size or 'none'}. Set HF_ENDPOINT to another mirror, or unset it."
            )
        # The ETag of large files is their SHA-256, that of small ones a Git hash.
        sha256 = re.fullmatch(r'"?([0-9a-f]{64})"?', headers.get("X-Linked-ETag", ""))
        return _Remote(int(size), sha256[1] if sha256 else None)

    def _resume_headers(self, remote: _Remote) -> dict[str, str]:
        """The headers to resume with; empty unless the part is of the file there now."""
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
            etag = record.pop("etag")
        except (OSError, ValueError, LookupError):  # absent, or cut short by a kill
            return {}
        done = _size(self.part)
        if record != asdict(remote) or not 0 < done <= remote.size:
            return {}
        if etag:
            return {"Range": f"bytes={done}-", "If-Range": etag}
        return {"Range": f"bytes={done}-"} if remote.sha256 else {}

    def _receive(self, remote: _Remote) -> None:
        """Downloads what is missing, or everything where the server cannot resume."""
        resume = self._resume_headers(remote)
        request = Request(self.url, headers=_HEADERS | resume)
        with ExitStack() as stack:
            answer = build_opener().open(request, timeout=self.timeout_s)
            response: HTTPResponse = stack.enter_context(answer)
            self._begin(response, remote, resume)
            with _disk_errors(self.part):
                file = stack.enter_context(self.part.open("ab", buffering=0))
            done = _size(self.part)
            self.progress(self.target.name, done, remote.size)
            while done <= remote.size and (chunk := response.read1(_CHUNK_BYTES)):
                rest = memoryview(chunk)
                while rest:
                    with _disk_errors(self.part):
                        rest = rest[file.write(rest) :]
                done += len(chunk)
                self.progress(self.target.name, done, remote.size)
            with _disk_errors(self.part):
                os.fsync(file.fileno())
        if done < remote.size:
            raise ConnectionError(f"the connection ended at byte {done} of {remote.size}")

    def _begin(self, response: HTTPResponse, remote: _Remote, resume: dict[str, str]) -> None:
        """Checks that the body continues the partial file, or empties it for a new start."""
        etag = response.headers.get("ETag", "")
        if response.status == 206:
            span = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
            same = etag in ("", resume.get("If-Range", etag))
            if resume and same and span and int(span[1]) == _size(self.part):
                return
            self._discard()
            raise ConnectionError("the server resumed with another range or another file")
        length = response.headers.get("Content-Length", str(remote.size))
        if length != str(remote.size):
            raise DataError(
                f"{self.url} has {length} bytes, but the server states {remote.size}. Run the "
                "command again, or set HF_ENDPOINT to another mirror."
            )
        self._discard()
        strong = etag if etag.startswith('"') else None  # a weak one proves nothing
        with _disk_errors(self.record):
            text = json.dumps(asdict(remote) | {"etag": strong})
            self.record.write_text(text, encoding="utf-8")

    def _discard(self) -> None:
        with _disk_errors(self.part):
            self.part.unlink(missing_ok=True)
            self.record.unlink(missing_ok=True)


def _size(path: Path) -> int:
    with _disk_errors(path):
        return path.stat().st_size if path.is_file() else 0


@contextmanager
def _disk_errors(path: Path) -> Generator[None]:
    """Tells errors of the disk, which end the download, from those of the network."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path} cannot be read or written: {error.strerror}. Free some space or choose "
            "another --directory. What has arrived is kept: the same command resumes."
        ) from error
