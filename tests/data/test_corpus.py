import itertools
import os
import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import pytest

from minigpt.data import corpus as module
from minigpt.data.corpus import (
    BUILTIN_STORIES,
    DELIMITER,
    PIECE_BYTES,
    BuiltinCorpus,
    FileCorpus,
    Piece,
    ReadCounts,
    open_corpus,
)
from minigpt.data.stories import story
from minigpt.data.tokenizer import load_tokenizer
from minigpt.errors import DataError

END = DELIMITER.decode()


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def pieces_of(path: Path | str, max_stories: int | None = None) -> tuple[list[Piece], ReadCounts]:
    counts = ReadCounts()
    return list(open_corpus(str(path), max_stories).pieces(counts)), counts


def joined(pieces: list[Piece]) -> list[str]:
    stories: list[str] = []
    is_open = False
    for piece in pieces:
        assert piece.first is not is_open, "pieces of one story follow each other"
        if piece.first:
            stories.append("")
        stories[-1] += piece.text
        is_open = not piece.last
    assert not is_open, "the last story is complete"
    return stories


def read(path: Path | str, max_stories: int | None = None) -> tuple[list[str], ReadCounts]:
    pieces, counts = pieces_of(path, max_stories)
    return joined(pieces), counts


def long_text(num_words: int, seed: int = 0) -> str:
    """Words with all that a GPT-2 token may or may not span."""
    random = Random(seed)
    words = [
        *(
            "one",
            "don't",
            "we'll",
            "1234",
            "x",
            "naïve",
            "été",
            "日本語",
            "🙂🙂",
            "(a)",
            "--",
            "!?",
        ),
        *("\u00a0", "\u3000", "\u2003", "\x85", "\u00a0\u00a0"),
    ]
    gaps = ["", " ", " ", " ", " ", "  ", "\n", "\n\n", " \n", "\t", " \t "]
    parts = [part for _ in range(num_words) for part in (random.choice(words), random.choice(gaps))]
    return "Once" + "".join(parts) + " end"


# Splitting into stories


def test_stories_are_split_at_the_delimiter_and_stripped(tmp_path):
    path = write(tmp_path / "a.txt", f"One.\n{END}\n  Two\n\nlines. {END}Three.{END}\n")
    stories, counts = read(path)
    assert stories == ["One.", "Two\n\nlines.", "Three."]
    assert (counts.num_stories, counts.num_empty) == (3, 0)
    assert counts.num_bytes == path.stat().st_size


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 5, 7, 12, 13, 14, 40])
def test_chunk_size_does_not_change_the_stories(tmp_path, monkeypatch, chunk_bytes):
    text = f"One é.\r\n{END}\r\nTwo\r\rwords\r\n{END}\r\n\r\n{END}<|endo{END}<|endoftext|Four 🙂"
    path = write(tmp_path / "a.txt", text)
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
    stories, counts = read(path)
    assert stories == ["One é.", "Two\r\rwords", "<|endo", "<|endoftext|Four 🙂"]
    assert (counts.num_stories, counts.num_empty) == (4, 1)
    assert (counts.num_replaced, counts.num_bytes) == (0, len(text.encode()))


@pytest.mark.parametrize("position", range(-15, 2))
def test_delimiter_at_the_edge_of_a_real_chunk(tmp_path, position):
    first = "a b " * ((module._CHUNK_BYTES + position) // 4) + "c" * (position % 4)
    stories, _ = read(write(tmp_path / "a.txt", f"{first}{END}second{END}"))
    assert stories == [first.strip(), "second"]


def test_crlf_at_the_edge_of_a_real_chunk(tmp_path):
    before = "a" * (module._CHUNK_BYTES - 1)
    stories, _ = read(write(tmp_path / "a.txt", f"{before}\r\nsecond line"))
    assert stories == [f"{before}\nsecond line"]


def test_missing_last_delimiter_is_accepted(tmp_path):
    stories, counts = read(write(tmp_path / "a.txt", f"One{END}Two"))
    assert stories == ["One", "Two"]
    assert counts.num_stories == 2


def test_last_carriage_return_is_kept_until_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_BYTES", 4)
    assert read(write(tmp_path / "a.txt", "a\rb\r"))[0] == ["a\rb"]


def test_empty_stories_are_dropped_and_counted(tmp_path):
    path = write(tmp_path / "a.txt", f"{END}{END} \n\t{END}One{END}\n\n{END}Two{END}\n \n")
    stories, counts = read(path)
    assert stories == ["One", "Two"]
    assert (counts.num_stories, counts.num_empty) == (2, 4)


def test_byte_order_mark_is_no_text(tmp_path):
    write(tmp_path / "a.txt", f"\ufeffOne{END}Two")
    write(tmp_path / "b.txt", "\ufeffThree")
    assert read(tmp_path)[0] == ["One", "Two", "Three"]


def test_end_of_a_file_ends_a_story(tmp_path):
    write(tmp_path / "a.txt", f"One{END}Two")
    write(tmp_path / "b.txt", f"Three{END}\n")
    stories, counts = read(tmp_path)
    assert stories == ["One", "Two", "Three"]
    assert counts.num_stories == 3


def test_max_stories_stops_reading(tmp_path):
    write(tmp_path / "a.txt", f"One{END}{END}Two")
    write(tmp_path / "b.txt", f"{'word ' * PIECE_BYTES}{END}Four")
    assert read(tmp_path, 2)[0] == ["One", "Two"]
    stories, counts = read(tmp_path, 3)
    assert stories == ["One", "Two", ("word " * PIECE_BYTES).strip()]
    assert counts.num_stories == 3
    assert len(read(tmp_path, 100)[0]) == 4


# Text that is not quite text


def test_invalid_bytes_are_replaced_and_counted(tmp_path):
    path = write(tmp_path / "a.txt", b"caf\xe9 and \xff\xfe" + DELIMITER + b"cut \xe2\x82")
    stories, counts = read(path)
    assert stories == ["caf\ufffd and \ufffd\ufffd", "cut \ufffd"]
    assert counts.num_replaced == 4
    assert counts.num_characters == sum(map(len, stories))


def test_replacement_character_in_the_text_is_not_counted(tmp_path):
    path = write(tmp_path / "a.txt", "written \ufffd\ufffd".encode() + b" and caf\xe9")
    stories, counts = read(path)
    assert stories == ["written \ufffd\ufffd and caf\ufffd"]
    assert counts.num_replaced == 1


def test_a_few_invalid_bytes_in_much_text_are_no_error(tmp_path):
    path = write(tmp_path / "a.txt", (b"plain words " * 20 + b"caf\xe9 ") * 500)
    assert read(path)[1].num_replaced == 500


def test_latin_1_is_refused(tmp_path):
    path = write(tmp_path / "a.txt", ("été à la mer, où l'œil " * 500).encode("cp1252"))
    with pytest.raises(DataError, match=r"not UTF-8 text.*iconv") as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("before", [b"", b"some words then "])
def test_bytes_that_only_continue_characters_are_refused(tmp_path, before):
    path = write(tmp_path / "a.txt", before + b"\x80" * 200_000)
    with pytest.raises(DataError, match="not UTF-8 text"):
        read(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_wide_encodings_are_refused(tmp_path, encoding):
    path = write(tmp_path / "a.txt", "Once upon a time".encode(encoding))
    with pytest.raises(DataError, match=r"zero byte at offset \d+.*iconv") as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_binary_file_among_others_is_named(tmp_path):
    write(tmp_path / "a.txt", "text")
    binary = write(tmp_path / "b.bin", b"\x7fELF\0\0")
    with pytest.raises(DataError, match="zero byte at offset 4") as caught:
        open_corpus(str(tmp_path), None)
    assert str(binary) in str(caught.value)


# What a path may name


def test_missing_file(tmp_path):
    path = tmp_path / "nothing.txt"
    with pytest.raises(DataError, match=r"does not exist.*minigpt data fetch") as caught:
        open_corpus(str(path), None)
    assert str(path) in str(caught.value)


def test_empty_file(tmp_path):
    path = write(tmp_path / "a.txt", b"")
    with pytest.raises(DataError, match=r"is empty \(0 bytes in 1 file.*give a text file"):
        open_corpus(str(path), None)


def test_an_empty_file_beside_a_full_one_is_no_error(tmp_path):
    write(tmp_path / "a.txt", b"")
    write(tmp_path / "b.txt", "text")
    assert read(tmp_path)[0] == ["text"]


@pytest.mark.parametrize("hidden", [[], [".hidden.txt"], [".git/a.txt", "sub/.b"]])
def test_folder_without_files(tmp_path, hidden):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in hidden:
        write(folder / name, "text")
    with pytest.raises(DataError, match=r"holds no files: give a text file") as caught:
        open_corpus(str(folder), None)
    assert str(folder) in str(caught.value)


def test_glob_without_matches(tmp_path):
    write(tmp_path / "a.md", "text")
    with pytest.raises(DataError, match="holds no files"):
        open_corpus(str(tmp_path / "*.txt"), None)


def test_unreadable_file(tmp_path):
    path = tmp_path / "loop.txt"
    path.symlink_to(path)
    with pytest.raises(
        DataError, match=r"cannot be read: .+; .*readable file or give another"
    ) as caught:
        open_corpus(str(path), None)
    assert str(path) in str(caught.value)


def test_unreadable_file_in_a_folder(tmp_path):
    write(tmp_path / "a.txt", "text")
    path = tmp_path / "b.txt"
    path.symlink_to(tmp_path / "gone.txt")
    with pytest.raises(DataError, match="cannot be read") as caught:
        open_corpus(str(tmp_path), None)
    assert str(path) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission(tmp_path):
    path = write(tmp_path / "a.txt", "text")
    path.chmod(0)
    with pytest.raises(DataError, match="cannot be read: Permission denied") as caught:
        open_corpus(str(path), None)
    assert str(path) in str(caught.value)


def test_file_that_disappears_after_opening(tmp_path):
    path = write(tmp_path / "a.txt", "text")
    corpus = open_corpus(str(path), None)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        list(corpus.pieces(ReadCounts()))
    with pytest.raises(DataError, match="cannot be read"):
        corpus.identity()


def test_folder_is_read_in_order_of_names_without_hidden_files(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/b/c.txt", "c.md", ".hidden", "a/.git/config", ".x/y.txt"):
        write(tmp_path / name, name)
    assert read(tmp_path)[0] == ["a/b/c.txt", "a/z.txt", "b.txt", "c.md"]


def test_folder_below_a_hidden_one_is_read(tmp_path):
    write(tmp_path / ".cache" / "texts" / "a.txt", "text")
    assert read(tmp_path / ".cache" / "texts")[0] == ["text"]


def test_glob_is_read_in_order_of_names(tmp_path):
    for name in ("2.txt", "1.txt", "3.md", "sub/4.txt"):
        write(tmp_path / name, name)
    (tmp_path / "folder.txt").mkdir()
    assert read(tmp_path / "*.txt")[0] == ["1.txt", "2.txt"]
    assert read(tmp_path / "**" / "*.txt")[0] == ["1.txt", "2.txt", "sub/4.txt"]


def test_magic_characters_in_a_real_name_are_no_glob(tmp_path):
    path = write(tmp_path / "stories[1].txt", "bracket")
    write(tmp_path / "stories1.txt", "other")
    assert read(path)[0] == ["bracket"]


def test_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a.txt", "text")
    assert read("~/a.txt")[0] == ["text"]
    assert read("~/*.txt")[0] == ["text"]


def test_identity_follows_content_names_and_limit_but_not_the_folder(tmp_path):
    one = open_corpus(str(write(tmp_path / "x" / "a.txt", "text")), None).identity()
    assert open_corpus(str(write(tmp_path / "y" / "a.txt", "text")), None).identity() == one
    others = [
        open_corpus(str(write(tmp_path / "z" / "a.txt", "Text")), None).identity(),
        open_corpus(str(write(tmp_path / "x" / "b.txt", "text")), None).identity(),
        open_corpus(str(tmp_path / "x" / "a.txt"), 5).identity(),
    ]
    assert one not in others


def test_total_bytes_and_name(tmp_path):
    write(tmp_path / "a.txt", "four")
    write(tmp_path / "b.txt", "é")
    assert open_corpus(str(tmp_path), None).total_bytes == 6
    assert open_corpus(str(tmp_path), None).name == "2 files"
    assert open_corpus(str(tmp_path / "a.txt"), None).name == str(tmp_path / "a.txt")


# The built-in corpus


def test_no_path_is_the_built_in_corpus():
    assert open_corpus(None, None) == BuiltinCorpus(BUILTIN_STORIES)
    corpus = open_corpus(None, 5)
    counts = ReadCounts()
    pieces = list(corpus.pieces(counts))
    assert pieces == [Piece(story(0, index)) for index in range(5)]
    assert counts.num_stories == 5
    assert counts.num_bytes == counts.num_characters == sum(len(p.text) for p in pieces)


def test_built_in_stories_are_ascii_and_their_size_estimate_is_close():
    texts = [story(0, index) for index in range(500)]
    assert all(text.isascii() and text == text.strip() for text in texts)
    estimate = BuiltinCorpus(500).total_bytes
    assert estimate == pytest.approx(sum(map(len, texts)), rel=0.1)


def test_identity_of_the_built_in_corpus():
    assert BuiltinCorpus(10).identity() == BuiltinCorpus(10).identity()
    assert BuiltinCorpus(10).identity() != BuiltinCorpus(11).identity()
    assert BuiltinCorpus(10, seed=1).identity() != BuiltinCorpus(10).identity()


# Long stories


def assert_same_tokens(pieces: list[Piece], whole: str) -> None:
    tokenizer = load_tokenizer("gpt2")
    parts = [tokenizer.encode(piece.text) for piece in pieces]
    np.testing.assert_array_equal(np.concatenate(parts), tokenizer.encode(whole))


def test_long_story_arrives_in_pieces_with_the_same_tokens(tmp_path):
    stories = [long_text(50_000, seed) for seed in range(2)]
    pieces, counts = pieces_of(write(tmp_path / "a.txt", END.join([*stories, "short"])))
    assert joined(pieces) == [*stories, "short"]
    assert counts.num_stories == 3
    assert len(pieces) > 20
    assert max(len(piece.text.encode()) for piece in pieces) < 2 * PIECE_BYTES
    start = 0
    for text in stories:
        stop = next(i for i in range(start, len(pieces)) if pieces[i].last) + 1
        assert_same_tokens(pieces[start:stop], text)
        start = stop


@pytest.mark.parametrize(("piece_bytes", "chunk_bytes"), [(16, 50), (20, 1000), (33, 16), (64, 7)])
def test_many_cuts_keep_text_and_tokens(tmp_path, monkeypatch, piece_bytes, chunk_bytes):
    text = long_text(4_000, seed=piece_bytes)
    path = write(tmp_path / "a.txt", text)
    monkeypatch.setattr(module, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
    pieces, counts = pieces_of(path)
    assert joined(pieces) == [text]
    assert counts.num_replaced == 0
    assert len(pieces) > len(text) // (4 * piece_bytes)
    assert_same_tokens(pieces, text)


def test_no_cut_within_a_token_of_no_break_spaces(tmp_path, monkeypatch):
    # " \u00a0 \u00a0" is one token of GPT-2: a space within it is not the start of white space.
    text = "word" + " \u00a0" * 200 + " end"
    path = write(tmp_path / "a.txt", text)
    monkeypatch.setattr(module, "PIECE_BYTES", 16)
    pieces, _ = pieces_of(path)
    assert joined(pieces) == [text]
    assert_same_tokens(pieces, text)


@pytest.mark.parametrize("unit", ["x", "é", "語", "🙂", "aé語🙂", "語\t", "\u3000語"])
def test_text_without_spaces_is_cut_between_characters(tmp_path, unit):
    text = "!" + unit * (400_000 // len(unit.encode())) + "!"
    pieces, counts = pieces_of(write(tmp_path / "a.txt", text))
    assert joined(pieces) == [text]
    assert counts.num_replaced == 0
    sizes = [len(piece.text.encode()) for piece in pieces]
    assert max(sizes) <= module._SEARCH_BYTES + 2 * PIECE_BYTES
    assert len(sizes) > 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stories", "one story", "no white space"])
def test_memory_does_not_follow_the_size_of_the_file(tmp_path, kind):
    block = {
        "stories": "".join(f"{story(0, index)}\n{END}\n" for index in range(100)),
        "one story": "\n".join(story(0, index) for index in range(100)),
        "no white space": "日本語の文" * 10_000,
    }[kind].encode()
    path = tmp_path / "a.txt"
    with path.open("wb") as stream:
        stream.writelines(itertools.repeat(block, 64_000_000 // len(block) + 1))
    corpus, counts = FileCorpus((path,)), ReadCounts()
    num_characters = 0
    tracemalloc.start()
    try:
        for piece in corpus.pieces(counts):
            num_characters += len(piece.text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counts.num_bytes == path.stat().st_size > 64_000_000
    assert num_characters > 20_000_000
    assert peak < 12_000_000
