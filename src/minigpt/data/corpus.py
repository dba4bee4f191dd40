"""Text files, or the generated sample corpus, as a stream of documents.

Files are read in chunks: memory holds one chunk and one piece of a story, whatever the size of
the file. A story longer than ``PIECE_BYTES`` arrives as several pieces, cut where white space
begins, which no GPT-2 token spans, so the tokens of the pieces are the tokens of the story. (Text
that has no white space for 64 KiB is cut between two characters.)
"""

import glob
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from minigpt.data import stories
from minigpt.errors import DataError

DELIMITER = stories.DELIMITER.encode()
PIECE_BYTES = 16 * 1024
BUILTIN_STORIES = 20_000
_CHUNK_BYTES = 1024 * 1024
_MAX_REPLACED_SHARE = 0.05
_SEARCH_BYTES = 64 * 1024
# A no-break space (0xC2 0xA0) is not text: GPT-2 has tokens of it and spaces in turn.
_SPACE_AFTER_TEXT = re.compile(rb"(?<=\S)(?<!\xc2\xa0)[ \n]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A story, or a part of a long one: ``first`` and ``last`` tell which."""

    text: str
    first: bool = True
    last: bool = True


@dataclass(slots=True)
class ReadCounts:
    """What reading met so far."""

    num_stories: int = 0
    num_empty: int = 0
    num_bytes: int = 0
    num_characters: int = 0
    num_replaced: int = 0
    """Characters that stand for bytes which are not UTF-8."""


@runtime_checkable
class Corpus(Protocol):
    """A source of stories with an identity."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def total_bytes(self) -> int:
        """Size of the text, for progress."""
        ...

    def identity(self) -> dict[str, object]:
        """What the text depends on: equal identities mean equal text."""
        ...

    def pieces(self, counts: ReadCounts) -> Iterator[Piece]:
        """The stories in order; ``counts`` is kept up to date."""
        ...


@dataclass(frozen=True)
class BuiltinCorpus:
    """The generated stories of ``data.stories``; the same ones on every machine."""

    num_stories: int = BUILTIN_STORIES
    seed: int = 0

    @property
    def name(self) -> str:
        """For messages."""
        return "the built-in sample corpus"

    @property
    def total_bytes(self) -> int:
        """An estimate, for progress only."""
        return self.num_stories * 975

    def identity(self) -> dict[str, object]:
        """Seed, number of stories, and a hash that changes with the generator."""
        sample = "".join(stories.story(self.seed, index) for index in range(32))
        digest = hashlib.sha256(sample.encode()).hexdigest()
        return {"builtin": digest, "seed": self.seed, "num_stories": self.num_stories}

    def pieces(self, counts: ReadCounts) -> Iterator[Piece]:
        """The stories in order."""
        for index in range(self.num_stories):
            text = stories.story(self.seed, index)
            counts.num_stories += 1
            counts.num_bytes += len(text)
            counts.num_characters += len(text)
            yield Piece(text)


@dataclass(frozen=True)
class FileCorpus:
    """Text files with ``<|endoftext|>`` between stories; the end of a file ends a story."""

    files: tuple[Path, ...]
    max_stories: int | None = None

    @property
    def name(self) -> str:
        """The file, or how many there are."""
        return str(self.files[0]) if len(self.files) == 1 else f"{len(self.files)} files"

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self.files)

    def identity(self) -> dict[str, object]:
        """Names and contents of the files (not their folder), and where reading stops.

        Raises:
            DataError: a file cannot be read.
        """
        return {
            "files": [[file.name, _content_hash(file)] for file in self.files],
            "max_stories": self.max_stories,
        }

    def pieces(self, counts: ReadCounts) -> Iterator[Piece]:
        """The stories in order.

        Raises:
            DataError: a file cannot be read or is not UTF-8 text.
        """
        for file in self.files:
            for raw, first, last in _raw_pieces(_chunks(file, counts)):
                text = _decode(raw, counts, file).strip("\ufeff" if first else "")
                text = text.lstrip() if first else text
                text = text.rstrip() if last else text
                if first and last and not text:
                    counts.num_empty += 1
                    continue
                yield Piece(text, first, last)
                counts.num_stories += last
                if counts.num_stories == self.max_stories:
                    return


def open_corpus(path: str | None, max_stories: int | None) -> Corpus:
    """The corpus that ``data.path`` names: a file, a folder, a glob, or the built-in one.

    Raises:
        DataError: nothing is there, or a file is empty, unreadable or not text.
    """
    if path is None:
        return BuiltinCorpus(max_stories or BUILTIN_STORIES)
    files = _find_files(path)
    for file in files:
        _check_is_text(file)
    if not any(file.stat().st_size for file in files):
        raise DataError(
            f"data.path {path!r} is empty (0 bytes in {len(files)} file(s)): "
            "give a text file with stories in it; without data.path, `minigpt train` has its own"
        )
    return FileCorpus(tuple(files), max_stories)


def _find_files(path: str) -> list[Path]:
    root = Path(path).expanduser()
    if root.is_dir():
        found = (file for file in root.rglob("*") if not _hidden(file.relative_to(root)))
    elif glob.has_magic(path) and not root.exists():
        found = (Path(name) for name in glob.glob(str(root), recursive=True))
    else:
        found = iter([root])
    files = sorted(file for file in found if not file.is_dir())
    if not files or (not glob.has_magic(path) and not root.exists() and not root.is_symlink()):
        raise DataError(
            f"data.path {path!r} does not exist or holds no files: give a text file, a folder "
            "of text files or a glob in quotes such as 'texts/*.txt'; `minigpt data fetch "
            "tinystories` downloads one"
        )
    return files


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)


def _read_error(file: Path, error: OSError) -> DataError:
    return DataError(
        f"data.path {str(file)!r} cannot be read: {error.strerror or error}; "
        "make it a readable file or give another"
    )


def _check_is_text(file: Path) -> None:
    try:
        with file.open("rb") as stream:
            head = stream.read(8192)
    except OSError as error:
        raise _read_error(file, error) from error
    if (position := head.find(b"\0")) >= 0:
        raise DataError(
            f"data.path {str(file)!r} is not UTF-8 text: it has a zero byte at offset {position}, "
            "as binary files and UTF-16 do; convert it, for example with "
            "`iconv -f UTF-16 -t UTF-8`"
        )


def _content_hash(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _read_error(file, error) from error


def _chunks(file: Path, counts: ReadCounts) -> Iterator[bytes]:
    """The file's bytes with CRLF as LF; a pair split between chunks is held together."""
    try:
        with file.open("rb") as stream:
            held = b""
            while chunk := stream.read(_CHUNK_BYTES):
                counts.num_bytes += len(chunk)
                chunk = held + chunk
                held = b"\r" if chunk.endswith(b"\r") else b""
                yield chunk.removesuffix(b"\r").replace(b"\r\n", b"\n")
            if held:
                yield held
    except OSError as error:
        raise _read_error(file, error) from error


def _raw_pieces(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bool, bool]]:
    """Split at delimiters and cut long stories: (bytes, first of its story, last of it)."""
    buffer, first = b"", True
    for chunk in chunks:
        *stories_ended, buffer = (buffer + chunk).split(DELIMITER)
        for story in stories_ended:
            for piece, is_last in _cut(story, keep=0):
                yield piece, first, is_last
                first = is_last
        # The rest may end in the beginning of a delimiter, so its last bytes wait.
        *whole, (buffer, _) = _cut(buffer, keep=PIECE_BYTES)
        for piece, _ in whole:
            yield piece, first, False
            first = False
    if buffer.strip() or not first:
        for piece, is_last in _cut(buffer, keep=0):
            yield piece, first, is_last
            first = is_last


def _cut(story: bytes, *, keep: int) -> Iterator[tuple[bytes, bool]]:
    """Pieces of about PIECE_BYTES, the last one (flagged) with at least ``keep`` bytes."""
    start = 0
    while len(story) - start > PIECE_BYTES + keep:
        cut = _cut_place(story, start + PIECE_BYTES, len(story) - keep)
        if cut is None:
            break
        yield story[start:cut], False
        start = cut
    yield story[start:], True


def _cut_place(story: bytes, start: int, stop: int) -> int | None:
    """Where to cut at or after ``start``: at white space, else between two characters."""
    if found := _SPACE_AFTER_TEXT.search(story, start, min(stop, start + _SEARCH_BYTES)):
        return found.start()
    if stop - start < _SEARCH_BYTES:
        return None
    # A UTF-8 sequence has at most 4 bytes; a longer run of such bytes is no UTF-8 at all.
    starts = (i for i in range(start, start - 4, -1) if story[i] & 0xC0 != 0x80)
    return next(starts, start)


def _decode(raw: bytes, counts: ReadCounts, file: Path) -> str:
    text = raw.decode("utf-8", errors="replace")
    counts.num_characters += len(text)
    if "\ufffd" in text:
        counts.num_replaced += text.count("\ufffd") - raw.count("\ufffd".encode())
        if counts.num_replaced > max(100, _MAX_REPLACED_SHARE * counts.num_characters):
            raise DataError(
                f"data.path {str(file)!r} is not UTF-8 text: {counts.num_replaced} of the first "
                f"{counts.num_characters} characters could not be decoded; convert it, for "
                "example with `iconv -f ISO-8859-1 -t UTF-8`"
            )
    return text
