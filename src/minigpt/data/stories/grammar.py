"""Small English helpers: articles, capital letters, pronouns and quoted speech."""

from typing import NamedTuple

_VOWELS = frozenset("aeiouAEIOU")
_SAID_BY_PRONOUN = ("he", "she")


class Character(NamedTuple):
    """Somebody in a story, with every form in which a sentence may need them."""

    name: str
    Name: str
    kind: str
    he: str
    him: str
    his: str
    He: str
    His: str

    def __format__(self, format_spec: str) -> str:
        """A character in an f-string is written as the name."""
        return self.name


def male(name: str, kind: str) -> Character:
    """Makes a character who is called he."""
    return Character(name, capital(name), kind, "he", "him", "his", "He", "His")


def female(name: str, kind: str) -> Character:
    """Makes a character who is called she."""
    return Character(name, capital(name), kind, "she", "her", "her", "She", "Her")


def capital(text: str) -> str:
    """Makes the first letter a capital, also behind an opening quote."""
    if text.startswith('"'):
        return '"' + capital(text[1:])
    return text[:1].upper() + text[1:]


def a(noun: str) -> str:
    """Puts a or an before a noun phrase."""
    return f"an {noun}" if noun[0] in _VOWELS else f"a {noun}"


def listed(items: list[str]) -> str:
    """Joins noun phrases as in: the hen, the cow, and the pig."""
    if len(items) < 3:
        return " and ".join(items)
    return ", ".join(items[:-1]) + f", and {items[-1]}"


def first_sentence(line: str) -> tuple[str, str]:
    """Splits a line after its first sentence; the rest is empty if there is only one."""
    ends = [end for mark in ".!?" if (end := line.find(f"{mark} ")) >= 0]
    cut = min(ends, default=len(line) - 1) + 1
    return line[:cut], line[cut + 1 :]


def quote_then_tag(line: str, who: str, verb: str, manner: str) -> str:
    """Writes speech with the speaker behind it: "Come in," said Tom kindly."""
    spoken = f"{line[:-1]}," if line.endswith(".") else line
    # Only a name may follow the verb, and only a short verb sounds right before a name.
    if who in _SAID_BY_PRONOUN or verb not in {"said", "asked", "cried", "called"}:
        return f'"{spoken}" {who} {verb}{manner}.'
    return f'"{spoken}" {verb} {who}{manner}.'


def tag_then_quote(line: str, who: str, verb: str, manner: str) -> str:
    """Writes speech with the speaker before it: Tom said, "Come in" (with its full stop)."""
    return capital(f'{who} {verb}{manner}, "{line}"')
