"""The storyteller: picks words, keeps the cast apart, and collects sentences."""

from collections.abc import Sequence
from random import Random

from minigpt.data.stories import words
from minigpt.data.stories.grammar import (
    Character,
    a,
    capital,
    female,
    first_sentence,
    male,
    quote_then_tag,
    tag_then_quote,
)


class Teller:
    """Tells one story, sentence by sentence."""

    def __init__(self, rng: Random) -> None:
        """Starts an empty story; all its choices come from rng."""
        self._random = rng.random
        self._paragraphs: list[list[str]] = [[]]
        self._cast: list[Character] = []
        self._has_spoken: set[str] = set()
        self._hobby: words.Hobby | None = None

    # Only Random.random() is promised to give the same numbers on every Python version.

    def pick[T](self, options: Sequence[T]) -> T:
        """Returns one of the options."""
        return options[int(self._random() * len(options))]

    def some[T](self, options: Sequence[T], count: int) -> list[T]:
        """Returns count different options in random order."""
        left = list(options)
        return [left.pop(int(self._random() * len(left))) for _ in range(count)]

    def chance(self, share: float = 0.5) -> bool:
        """Returns True in the given share of the stories."""
        return self._random() < share

    def tell(self, *variants: str) -> None:
        """Adds one of the variants to the paragraph."""
        self._paragraphs[-1].append(capital(self.pick(variants)))

    def perhaps(self, *variants: str) -> None:
        """Adds one of the variants, or nothing."""
        if self.chance():
            self.tell(*variants)

    def paragraph(self) -> None:
        """Starts a new paragraph."""
        self._paragraphs.append([])

    def text(self) -> str:
        """Returns the story so far."""
        return "\n\n".join(" ".join(lines) for lines in self._paragraphs if lines)

    def says(self, who: Character, *lines: str, mood: str = "plain") -> None:
        """Lets somebody say one of the lines."""
        line = self.pick(lines)
        name = self._name_or_pronoun(who)
        first, rest = first_sentence(line)
        if rest and self.chance(0.6):
            verb, manner = self.pick(words.SPEECH[mood][first[-1]])
            self.tell(f'{quote_then_tag(first, name, verb, manner)} "{rest}"')
            return
        verb, manner = self.pick(words.SPEECH[mood][line[-1]])
        write = quote_then_tag if self.chance(0.65) else tag_then_quote
        self.tell(write(line, name, verb, manner))

    def _name_or_pronoun(self, who: Character) -> str:
        clear = all(other is who or other.he != who.he for other in self._cast)
        if clear and self._paragraphs[-1] and who.name in self._has_spoken and self.chance(0.4):
            return who.he
        self._has_spoken.add(who.name)
        return who.name

    # The cast. Everybody in one story has a name of their own.

    def _join(self, names: Sequence[str], kind: str, *, he: bool) -> Character:
        taken = {other.name for other in self._cast}
        name = self.pick([name for name in names if name not in taken])
        who = male(name, kind) if he else female(name, kind)
        self._cast.append(who)
        return who

    def child(self) -> Character:
        """Adds a girl or a boy."""
        if self.chance():
            return self._join(words.GIRLS, "girl", he=False)
        return self._join(words.BOYS, "boy", he=True)

    def animal(self, kinds: Sequence[str] = words.FOREST_ANIMALS) -> Character:
        """Adds an animal that has a name, of a kind that is not in the story yet."""
        taken = {other.kind for other in self._cast}
        kind = self.pick([kind for kind in kinds if kind not in taken])
        if self.chance():
            return self._join(words.HER_ANIMAL_NAMES, kind, he=False)
        return self._join(words.HIS_ANIMAL_NAMES, kind, he=True)

    def hero(self) -> Character:
        """Adds a child or, less often, an animal."""
        return self.child() if self.chance(0.7) else self.animal()

    def friend(self, hero: Character) -> Character:
        """Adds somebody of the hero's world: a child for a child."""
        return self.child() if hero.kind in ("girl", "boy") else self.animal()

    def grownup(self, hero: Character) -> Character:
        """Adds somebody who looks after the hero."""
        is_child = hero.kind in ("girl", "boy")
        of_kind = capital(hero.kind)
        if self.chance():
            names = words.WOMEN if is_child else (f"Mama {of_kind}", f"Grandma {of_kind}")
            return self._join(names, "woman", he=False)
        names = words.MEN if is_child else (f"Papa {of_kind}", f"Grandpa {of_kind}")
        return self._join(names, "man", he=True)

    def neighbor(self) -> Character:
        """Adds an old person who lives near a child."""
        if self.chance():
            return self._join(words.NEIGHBORS_HER, "woman", he=False)
        return self._join(words.NEIGHBORS_HIS, "man", he=True)

    def wise_animal(self) -> Character:
        """Adds an old animal without a name."""
        return self._join(words.WISE_ANIMALS, "wise animal", he=self.chance())

    # Sentences that many plots share.

    def toy(self) -> str:
        """Returns a toy with its color."""
        return f"{self.pick(words.COLORS)} {self.pick(words.TOYS)}"

    def day(self) -> str:
        """Returns a phrase such as: one windy morning."""
        return self.pick(words.DAYS).format(self.pick(words.WEATHER), self.pick(words.HOURS))

    def place(self, hero: Character) -> words.Place:
        """Returns a place where the hero may go: no market for animals."""
        is_child = hero.kind in ("girl", "boy")
        return self.pick(words.PLACES if is_child else words.WILD_PLACES)

    def meet(self, hero: Character, *, hobby: bool = True) -> None:
        """Opens the story with who the hero is; a hobby comes back in the evening."""
        who = a(f"{self.pick(words.TRAITS)} {hero.kind}")
        is_child = hero.kind in ("girl", "boy")
        home = self.pick(words.CHILD_HOMES if is_child else words.ANIMAL_HOMES)
        self.tell(
            f"Once upon a time, there was {who} named {hero}.",
            f"Once upon a time, {who} named {hero} lived {home}.",
            f"Once there was {who} called {hero}.",
            f"{hero} was {who} who lived {home}.",
            f"There once was {who} who lived {home}. {hero.His} name was {hero}.",
            f"Long ago, {home}, there lived {who} named {hero}.",
        )
        if hobby and self.chance(0.35):
            self._hobby = self.pick(words.HOBBIES)
            self.tell(
                f"{hero.He} liked to {self._hobby.do}.",
                f"{hero} loved to {self._hobby.do}.",
                f"Every day, {hero.he} found some time to {self._hobby.do}.",
            )

    def evening(self, hero: Character, memory: str) -> None:
        """Ends the day: the hero's hobby comes back, or perhaps a look at the memory."""
        if self._hobby:
            self.tell(
                f"That evening, {hero} {self._hobby.did}.",
                f"Before bed, {hero} {self._hobby.did}.",
            )
        else:
            self.perhaps(
                f"That night, {hero} dreamed about {memory}.",
                f"{hero} went to bed with a big smile and thought about {memory}.",
                f"At bedtime, {hero} was still thinking about {memory}.",
                f"As the stars came out, {hero} closed {hero.his} eyes and felt warm inside.",
            )

    def moral(self, hero: Character, truths: Sequence[str], habits: Sequence[str]) -> None:
        """Closes the story with what the hero now knows or always does."""
        truth, habit = self.pick(truths), self.pick(habits)
        self.tell(
            f"{hero} learned that {truth}.",
            f"From that day on, {hero} {habit}.",
            f"And {hero} never forgot that {truth}.",
            f"The moral of this story is that {truth}.",
            f"Now {hero.he} knew that {truth}.",
            f"After that, {hero} {habit}, because {truth}.",
            f"{hero} was happy and a little bit wiser, for now {hero.he} knew that {truth}.",
            f"Remember, {truth}.",
        )
