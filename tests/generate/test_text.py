import numpy as np
import pytest

from minigpt.data.tokenizer import ByteTokenizer, Gpt2Tokenizer
from minigpt.generate.sampling import SamplingConfig
from minigpt.generate.text import Choice, Continuation

BYTES = ByteTokenizer()


def pieces_of(tokens, tokenizer=BYTES, **fields):
    """Texts and reasons, as the tokens are drawn one after the other."""
    config = SamplingConfig(**{"max_tokens": 1000} | fields)
    text = Continuation(tokenizer, [tokenizer.end_of_text], config)
    found = []
    for token in map(int, tokens):
        piece = text.accept(Choice(token, -1.0, ()))
        found.append((piece.text, piece.reason))
        if piece.reason:
            break
    return found


def test_a_character_comes_when_its_last_byte_does():
    assert pieces_of("né€".encode()) == [
        *[("n", None), ("", None), ("é", None)],
        *[("", None), ("", None), ("€", None)],
    ]


def test_what_is_left_of_a_character_is_replaced_at_the_end():
    assert pieces_of("n€".encode()[:3], max_tokens=3)[-1] == ("\ufffd", "length")
    assert pieces_of([ord("n"), 0xE2, BYTES.end_of_text])[-1] == ("\ufffd", "stop")


@pytest.mark.parametrize("tokenizer", [BYTES, Gpt2Tokenizer()], ids=["byte", "gpt2"])
def test_pieces_are_the_decoded_text(tokenizer):
    text = "Zoë 🙂 said: «nǐ hǎo», 你好!\n"
    pieces = pieces_of(tokenizer.encode(text), tokenizer)
    assert "".join(piece for piece, _ in pieces) == text
    tokens = np.random.default_rng(0).integers(0, tokenizer.end_of_text, 300)
    pieces = pieces_of(tokens, tokenizer, max_tokens=300)
    assert "".join(piece for piece, _ in pieces) == tokenizer.decode(tokens)


def test_end_of_text_ends_it_and_is_not_shown():
    assert pieces_of([65, BYTES.end_of_text, 66]) == [("A", None), ("", "stop")]


def test_a_stop_text_is_cut_off_and_held_back_until_it_is_certain():
    assert pieces_of(b"say END now", stop=("END",)) == [
        *[(character, None) for character in "say "],
        *[("", None), ("", None), ("", "stop")],
    ]
    assert pieces_of(b"ENEmy", stop=("END",)) == [
        *[("", None), ("", None), ("EN", None), ("Em", None), ("y", None)],
    ]
    assert pieces_of(b"EN", stop=("END",), max_tokens=2) == [("", None), ("EN", "length")]


def test_the_first_stop_text_counts():
    pieces = pieces_of(b"one two", stop=("two", "e "))
    assert "".join(piece for piece, _ in pieces) == "on"
    assert pieces[-1][1] == "stop"
