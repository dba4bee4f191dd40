"""Every token is a target once, with the context that is promised."""

import itertools

import numpy as np
import pytest

from minigpt.data.corpus import FileCorpus, Piece
from minigpt.data.tokenizer import ByteTokenizer
from minigpt.data.windows import TextWindows

SEQ = 6
END = ByteTokenizer.end_of_text


class Pieces:
    """A corpus of given pieces."""

    name, total_bytes = "pieces", 0

    def __init__(self, *pieces):
        self._pieces = pieces

    def identity(self):
        return {}

    def pieces(self, counts):
        for piece in self._pieces:
            counts.num_stories += piece.last
            yield piece


def windows_of(corpus, layout, stride, seq_length=SEQ):
    return TextWindows(corpus, ByteTokenizer(), layout, seq_length=seq_length, stride=stride)


def counted(windows, num_rows=3):
    """(tokens before it in its window, target) of each target that counts, in order."""
    found = []
    for (tokens, lengths), num_counted in windows.batches(num_rows):
        assert tokens.shape == (num_rows, tokens.shape[1])
        assert tokens.dtype == lengths.dtype == num_counted.dtype == np.int32
        for row, length, first in zip(tokens.tolist(), lengths, num_counted, strict=True):
            assert first == length == 0 or 1 <= first < length
            found += [(row[:place], row[place]) for place in range(first, length)]
    return found


def expected(stream, stride, seq_length=SEQ):
    """The same from the rule: the first window that holds a target among its targets counts it."""
    found = []
    for place in range(1, len(stream)):
        starts = itertools.count(0, stride)
        start = next(start for start in starts if place <= start + seq_length)
        found.append((stream[start:place], stream[place]))
    return found


def story(length):
    return "".join(chr(97 + number % 26) for number in range(length))


@pytest.mark.parametrize("stride", range(1, SEQ + 1))
@pytest.mark.parametrize("length", range(1, 21))
def test_every_token_of_a_story_is_a_target_once(length, stride):
    text = story(length)
    ids = list(text.encode())
    padded = counted(windows_of(Pieces(Piece(text)), "padded", stride))
    assert padded == expected([*ids, END], stride)
    packed = counted(windows_of(Pieces(Piece(text)), "packed", stride))
    assert packed == expected([END, *ids, END], stride)
    assert all(len(seen) >= min(place, SEQ - stride + 1) for place, (seen, _) in enumerate(packed))


@pytest.mark.parametrize("stride", [1, 3, 4, SEQ])
def test_stories_are_one_stream_where_packed_and_many_where_padded(stride):
    texts = [story(length) for length in (9, 1, 6, 7, 20, 5)]
    corpus = Pieces(*map(Piece, texts))
    joined = [END, *(token for text in texts for token in (*text.encode(), END))]
    assert counted(windows_of(corpus, "packed", stride)) == expected(joined, stride)
    alone = [target for text in texts for target in expected([*text.encode(), END], stride)]
    assert counted(windows_of(corpus, "padded", stride)) == alone


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_pieces_of_a_story_are_the_story(layout):
    parts = [Piece("ab", last=False), Piece("cdefghij", first=False, last=False)]
    parts += [Piece("k", first=False), Piece("xy")]
    whole = windows_of(Pieces(Piece("abcdefghijk"), Piece("xy")), layout, 4)
    pieces = windows_of(Pieces(*parts), layout, 4)
    assert counted(pieces) == counted(whole)
    assert pieces.num_bytes == whole.num_bytes == 13
    assert pieces.counts.num_stories == 2


@pytest.mark.parametrize("num_rows", [1, 2, 5, 100])
def test_batches_are_filled_with_rows_that_do_not_count(num_rows):
    windows = windows_of(Pieces(Piece(story(33))), "packed", 2)
    assert counted(windows, num_rows) == expected([END, *story(33).encode(), END], 2)


def test_bytes_are_those_of_the_stories_alone(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\ufeff  Bär\r\nund Ü \n<|endoftext|>\n<|endoftext|>\nzwei\n", newline="")
    windows = windows_of(FileCorpus((file,)), "packed", SEQ)
    targets = [target for _, target in counted(windows)]
    assert targets == [*"Bär\nund Ü".encode(), END, *b"zwei", END]
    assert windows.num_bytes == len("Bär\nund Ü".encode()) + 4
    assert windows.counts.num_stories == 2


def test_no_story_is_no_window():
    for layout in ("packed", "padded"):
        assert list(windows_of(Pieces(), layout, 1).batches(2)) == []
