import hashlib
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from minigpt.data import fetch as module
from minigpt.data.datasets import DATASETS, Dataset, dataset
from minigpt.data.fetch import fetch
from minigpt.errors import DataError

CONTENT = random.Random(0).randbytes(300_000)
CHANGED = random.Random(1).randbytes(280_000)
CUT = 100_000


@dataclass
class Hub:
    """What the server serves, how it misbehaves, and the requests that it saw."""

    content: bytes = CONTENT
    etag: str | None = None  # by default follows the content
    linked: bool = False  # describe the file and redirect, as the Hugging Face hub does
    linked_size: int | None = None
    linked_sha256: str | None = None
    cuts: list[int] = field(default_factory=list)  # bodies to cut, after so many bytes
    change_to: bytes | None = None  # the content after the next cut
    hang: threading.Event | None = None  # keeps a cut connection open until it is set
    unavailable: int = 0  # answers of 503 still to give
    ignore_range: bool = False
    ignore_if_range: bool = False
    refuse_range: bool = False
    no_length: bool = False
    seen: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    url: str = ""

    def bodies(self) -> list[str | None]:
        """The Range headers of the requests for the file itself, not for its address."""
        final = "/cdn/" if self.linked else "/"
        return [r for method, path, r, _ in self.seen if method == "GET" and final in path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *args) -> None:
        self.hub = hub
        super().__init__(*args)

    def log_message(self, format, *args) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def reply(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self) -> None:
        hub, content = self.hub, self.hub.content
        asked, if_range = self.headers["Range"], self.headers["If-Range"]
        hub.seen.append((self.command, self.path, asked, if_range))
        if hub.unavailable:
            hub.unavailable -= 1
            return self.reply(503, {"Content-Length": "0"})
        if not self.path.endswith("corpus.txt"):
            return self.reply(404, {"Content-Length": "0"})
        if self.path == "/renamed/corpus.txt":
            return self.reply(307, {"Location": "/corpus.txt", "Content-Length": "0"})
        if hub.linked and not self.path.startswith("/cdn/"):
            size = len(content) if hub.linked_size is None else hub.linked_size
            sha256 = hub.linked_sha256 or hashlib.sha256(content).hexdigest()
            return self.reply(
                302,
                {
                    "Location": "/cdn/corpus.txt",
                    "Content-Length": "0",
                    "X-Linked-Size": str(size),
                    "X-Linked-ETag": f'"{sha256}"',
                },
            )
        etag = f'"{hashlib.md5(content).hexdigest()}"' if hub.etag is None else hub.etag
        headers = {"ETag": etag} if etag else {}
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        if start and hub.refuse_range:
            return self.reply(416, {"Content-Length": "0"})
        unchanged = hub.ignore_if_range or if_range in (None, etag)
        if start and unchanged and not hub.ignore_range:
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        else:
            status, start = 200, 0
        if not hub.no_length:
            headers["Content-Length"] = str(len(content) - start)
        self.reply(status, headers)
        if self.command == "GET":
            self.body(content[start:])
        return None

    def body(self, data: bytes) -> None:
        hub = self.hub
        if not hub.cuts:
            self.wfile.write(data)
            return
        self.wfile.write(data[: hub.cuts.pop(0)])
        self.close_connection = True
        if hub.hang:
            hub.hang.wait(10)
        if hub.change_to is not None:
            hub.content, hub.change_to = hub.change_to, None


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address) -> None:
        """A client that went away is part of these tests."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    hub = Hub()
    with Server(("127.0.0.1", 0), partial(Handler, hub)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
        server.shutdown()
        thread.join()


def corpus(base_url: str, *files: str) -> Dataset:
    files = files or ("corpus.txt",)
    return Dataset(name="corpus", base_url=f"{base_url}/", files=files, description="")


def run(hub: Hub, directory: Path, **options) -> bytes:
    options = {"attempts": 3, "backoff_s": 0.0, "timeout_s": 5.0} | options
    [path] = fetch(corpus(hub.url), directory, **options)
    assert path == directory / "corpus.txt"
    assert [p.name for p in directory.iterdir()] == ["corpus.txt"]
    return path.read_bytes()


def part(directory: Path) -> bytes:
    return (directory / "corpus.txt.part").read_bytes()


@pytest.mark.parametrize("linked", [False, True])
def test_complete_download(hub, tmp_path, linked):
    hub.linked = linked
    calls = []
    data = run(hub, tmp_path / "new" / "directory", progress=lambda *call: calls.append(call))
    assert data == CONTENT
    assert hub.bodies() == [None]
    assert calls[0] == ("corpus.txt", 0, len(CONTENT))
    assert calls[-1] == ("corpus.txt", len(CONTENT), len(CONTENT))
    # The hub describes the file before it redirects: the HEAD need not follow.
    assert [path for method, path, *_ in hub.seen if method == "HEAD"] == ["/corpus.txt"]


def test_several_files_in_order(hub, tmp_path):
    names = ("a-corpus.txt", "b-corpus.txt")
    assert fetch(corpus(hub.url, *names), tmp_path) == [tmp_path / name for name in names]


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("no_etag", [False, True])
def test_cut_connection_resumes_at_the_byte_it_reached(hub, tmp_path, linked, no_etag):
    hub.linked, hub.cuts = linked, [CUT, 50_000]
    hub.etag = "" if no_etag else None
    assert run(hub, tmp_path) == CONTENT
    if no_etag and not linked:  # nothing tells that the file is still the same
        assert hub.bodies() == [None, None, None]
        return
    assert hub.bodies() == [None, f"bytes={CUT}-", f"bytes={CUT + 50_000}-"]
    if_range = hub.seen[-1][3]
    assert if_range == (None if no_etag else f'"{hashlib.md5(CONTENT).hexdigest()}"')


def test_failures_are_counted_only_while_nothing_new_arrives(hub, tmp_path):
    hub.cuts = [20_000] * 6
    assert run(hub, tmp_path, attempts=2) == CONTENT


def test_gives_up_on_a_server_that_cannot_resume(hub, tmp_path):
    hub.ignore_range, hub.cuts = True, [CUT] * 9
    with pytest.raises(DataError, match=rf"3 attempts in a row.*resumes from the {CUT} bytes"):
        run(hub, tmp_path)
    assert len(hub.bodies()) == 3
    assert part(tmp_path) == CONTENT[:CUT]


def test_server_that_ignores_ranges_restarts(hub, tmp_path):
    hub.ignore_range, hub.cuts = True, [CUT]
    assert run(hub, tmp_path) == CONTENT
    assert hub.bodies() == [None, f"bytes={CUT}-"]


def test_server_that_refuses_the_range_restarts(hub, tmp_path):
    hub.refuse_range, hub.cuts = True, [CUT]
    assert run(hub, tmp_path) == CONTENT
    assert hub.bodies() == [None, f"bytes={CUT}-", None]


@pytest.mark.parametrize("ignore_if_range", [False, True])
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("changed", [CHANGED, CONTENT[::-1]], ids=["shorter", "same size"])
def test_file_that_changes_on_the_server_is_not_glued_together(
    hub, tmp_path, linked, changed, ignore_if_range
):
    hub.linked, hub.cuts, hub.change_to = linked, [CUT], changed
    hub.ignore_if_range = ignore_if_range
    assert run(hub, tmp_path) == changed


def test_file_that_changes_is_noticed_by_its_checksum_without_an_etag(hub, tmp_path):
    hub.linked, hub.etag, hub.cuts, hub.change_to = True, "", [CUT], CONTENT[::-1]
    assert run(hub, tmp_path) == CONTENT[::-1]
    assert hub.bodies() == [None, None]


def test_plain_redirect_is_followed_to_the_description(hub, tmp_path):
    hub.linked = True  # a renamed repository: its first redirect says nothing of the file
    [path] = fetch(corpus(f"{hub.url}/renamed"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert [(method, path) for method, path, *_ in hub.seen] == [
        ("HEAD", "/renamed/corpus.txt"),
        ("HEAD", "/corpus.txt"),
        ("GET", "/renamed/corpus.txt"),
        ("GET", "/corpus.txt"),
        ("GET", "/cdn/corpus.txt"),
    ]


def test_killed_process_resumes(hub, tmp_path):
    hub.cuts, hub.hang = [CUT], threading.Event()
    code = (
        "import sys; from pathlib import Path; from minigpt.data.datasets import Dataset\n"
        "from minigpt.data.fetch import fetch\n"
        "fetch(Dataset(name='c', base_url=sys.argv[1], files=('corpus.txt',), description=''),"
        " Path(sys.argv[2]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, f"{hub.url}/", str(tmp_path)])
    path, deadline = tmp_path / "corpus.txt.part", time.monotonic() + 10
    try:
        while not path.exists() or path.stat().st_size < CUT:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL
        hub.hang.set()
    assert not (tmp_path / "corpus.txt").exists()
    assert run(hub, tmp_path) == CONTENT
    assert hub.bodies() == [None, f"bytes={CUT}-"]


def test_keyboard_interrupt_keeps_the_partial_file(hub, tmp_path):
    def interrupt(name: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(hub, tmp_path, progress=interrupt)
    kept = part(tmp_path)
    assert kept
    assert CONTENT.startswith(kept)
    assert run(hub, tmp_path) == CONTENT
    if len(kept) < len(CONTENT):
        assert hub.bodies() == [None, f"bytes={len(kept)}-"]


def test_complete_partial_file_is_verified_and_renamed_without_a_request(hub, tmp_path):
    def interrupt(name: str, done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(hub, tmp_path, progress=interrupt)
    assert run(hub, tmp_path) == CONTENT
    assert hub.bodies() == [None]


@pytest.mark.parametrize("record", [None, "", '{"size": 300000, "sha256"', "{}"])
def test_partial_file_without_its_record_restarts(hub, tmp_path, record):
    (tmp_path / "corpus.txt.part").write_bytes(b"unknown")
    if record is not None:
        (tmp_path / "corpus.txt.part.json").write_text(record)
    assert run(hub, tmp_path) == CONTENT
    assert hub.bodies() == [None]


def test_wrong_size(hub, tmp_path):
    hub.linked, hub.linked_size = True, 7
    (tmp_path / "corpus.txt").write_bytes(b"mine")
    with pytest.raises(DataError, match=f"corpus.txt has {len(CONTENT)} bytes.* states 7"):
        run(hub, tmp_path)
    assert (tmp_path / "corpus.txt").read_bytes() == b"mine"


@pytest.mark.parametrize("size", [7, 400_000])
def test_wrong_size_that_shows_only_at_the_end(hub, tmp_path, monkeypatch, size):
    hub.linked, hub.linked_size, hub.no_length = True, size, True
    monkeypatch.setattr(Handler, "protocol_version", "HTTP/1.0")  # ends bodies by closing
    with pytest.raises(DataError, match=rf"{size}"):
        run(hub, tmp_path)
    assert not (tmp_path / "corpus.txt").exists()


def test_wrong_checksum(hub, tmp_path):
    hub.linked, hub.linked_sha256 = True, "0" * 64
    (tmp_path / "corpus.txt").write_bytes(b"mine")
    with pytest.raises(DataError, match=f"{hashlib.sha256(CONTENT).hexdigest()}.*{'0' * 64}"):
        run(hub, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.txt"]
    assert (tmp_path / "corpus.txt").read_bytes() == b"mine"


def test_damaged_partial_file_is_found_by_the_checksum(hub, tmp_path):
    hub.linked, hub.cuts = True, [CUT] * 9
    hub.ignore_range = True
    with pytest.raises(DataError):
        run(hub, tmp_path)
    hub.ignore_range, hub.cuts = False, []
    (tmp_path / "corpus.txt.part").write_bytes(b"x" * CUT)
    with pytest.raises(DataError, match="SHA-256"):
        run(hub, tmp_path)
    assert run(hub, tmp_path) == CONTENT


def test_no_size_stated(hub, tmp_path, monkeypatch):
    hub.no_length = True
    monkeypatch.setattr(Handler, "protocol_version", "HTTP/1.0")  # ends bodies by closing
    with pytest.raises(DataError, match=r"verified by its size.*states none"):
        run(hub, tmp_path)


@pytest.mark.parametrize("linked", [False, True])
def test_complete_file_is_not_downloaded_again(hub, tmp_path, linked):
    hub.linked = linked
    run(hub, tmp_path)
    hub.seen.clear()
    assert run(hub, tmp_path) == CONTENT
    assert [method for method, *_ in hub.seen] == ["HEAD"]


def test_complete_file_with_another_checksum_is_replaced(hub, tmp_path):
    hub.linked = True
    (tmp_path / "corpus.txt").write_bytes(CONTENT[::-1])
    assert run(hub, tmp_path) == CONTENT


def test_missing_file(hub, tmp_path):
    with pytest.raises(DataError, match=f"{hub.url}/missing: .*404.*HF_ENDPOINT.*missing"):
        fetch(corpus(hub.url, "missing"), tmp_path)
    assert len(hub.seen) == 1
    assert not list(tmp_path.iterdir())


def test_unavailable_twice(hub, tmp_path):
    hub.unavailable = 2
    assert run(hub, tmp_path) == CONTENT


def test_waits_double_up_to_the_limit(hub, tmp_path, monkeypatch):
    hub.unavailable, waits = 99, []
    monkeypatch.setattr(module.time, "sleep", waits.append)
    with pytest.raises(DataError, match="503"):
        run(hub, tmp_path, attempts=7, backoff_s=1.0)
    assert waits == [1, 2, 4, 8, 16, 30]


def test_silent_server(hub, tmp_path):
    hub.cuts, hub.hang = [CUT], threading.Event()
    try:
        with pytest.raises(DataError, match="TimeoutError"):
            run(hub, tmp_path, attempts=1, timeout_s=0.2)
    finally:
        hub.hang.set()
    assert run(hub, tmp_path) == CONTENT


def test_unreachable_server(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port
    with pytest.raises(DataError, match=r"Connection refused.*Check the network"):
        run(Hub(url=f"http://127.0.0.1:{port}"), tmp_path)


def test_full_disk_keeps_the_partial_file(hub, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (CUT, limits[1]))
    try:
        with pytest.raises(DataError, match="part cannot be read or written: File too large"):
            run(hub, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert part(tmp_path) == CONTENT[:CUT]
    assert run(hub, tmp_path) == CONTENT
    assert hub.bodies() == [None, f"bytes={CUT}-"]


def test_directory_that_is_a_file(hub, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file cannot be read or written"):
        run(hub, tmp_path / "file")


@pytest.mark.parametrize("slash", ["", "/"])
def test_hf_endpoint(hub, tmp_path, monkeypatch, slash):
    monkeypatch.setenv("HF_ENDPOINT", hub.url + slash)
    base = "https://huggingface.co/datasets/x/resolve/main"
    [path] = fetch(corpus(base), tmp_path)
    assert path.read_bytes() == CONTENT
    assert {path for _, path, *_ in hub.seen} == {"/datasets/x/resolve/main/corpus.txt"}


def test_hf_endpoint_leaves_other_hosts_alone(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert run(hub, tmp_path) == CONTENT


def test_hf_endpoint_without_a_scheme(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "hf-mirror.com")
    with pytest.raises(DataError, match="HF_ENDPOINT must be like https://huggingface"):
        fetch(DATASETS["tinystories"], tmp_path)


def test_known_names():
    assert all(dataset(name) is DATASETS[name] for name in DATASETS)
    assert {name: entry.files for name, entry in DATASETS.items()} == {
        "tinystories": ("TinyStoriesV2-GPT4-train.txt", "TinyStoriesV2-GPT4-valid.txt"),
        "tinystories-v1": ("TinyStories-train.txt", "TinyStories-valid.txt"),
    }


def test_unknown_name():
    with pytest.raises(DataError, match=r"'TinyStory'.*Did you mean 'tinystories'\?"):
        dataset("TinyStory")
    with pytest.raises(DataError, match=r"'zzz'\. Known: tinystories, tinystories-v1"):
        dataset("zzz")
