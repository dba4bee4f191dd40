"""Plots in which a child looks after an animal: each function tells one kind of story."""

from minigpt.data.stories import words
from minigpt.data.stories.grammar import a, capital, listed
from minigpt.data.stories.props import BABIES, PATIENTS
from minigpt.data.stories.teller import Teller


def hurt_animal(t: Teller) -> None:
    """A child cares for a wild animal, and then lets it go."""
    hero, patient, place = t.child(), t.pick(PATIENTS), t.pick(words.WILD_PLACES)
    elder = t.grownup(hero)
    name = t.pick(("Button", "Lucky", "Dusty", "Peanut", "Star", "Pickle"))
    box = f"{t.pick(words.COLORS)} box"
    spot = t.pick(place.spots)
    t.meet(hero, hobby=False)
    t.paragraph()
    t.tell(
        f"{t.day()}, {hero} was {place.at} and heard a small sound {spot}.",
        f"{t.day()}, {hero} walked to {place.name}. Something moved {spot}.",
    )
    t.tell(
        f"It was a little {patient.kind}. {patient.hurt}",
        f"There sat a tiny {patient.kind}. {patient.hurt}",
    )
    t.says(hero, "You poor thing!", "Don't be afraid, little one.", mood="kind")
    t.tell(f"{hero} ran to get {elder}.", f"{hero} called {elder} as quietly as possible.")
    t.says(hero, "Can we help it?", "What can we do?", mood="shy")
    t.says(elder, "Yes, but we must be very gentle.", "We can try. Move slowly.", mood="answer")
    t.paragraph()
    t.tell(f"They carried the {patient.kind} home in {a(box)}.")
    t.tell(
        f"{elder} {patient.care}, and {hero} held the lamp.",
        f"{hero} watched as {elder} {patient.care}.",
    )
    t.tell(
        f"{hero} gave it {patient.food} and named it {name}.",
        f"They named it {name}, and {hero} brought it {patient.food}.",
    )
    t.perhaps(
        f"At first, {name} shook with fear and would not eat.",
        f"{name} looked at {hero} with bright black eyes.",
    )
    t.tell(
        f"Every morning before school, {hero} looked into the {box}.",
        f"{hero} slept next to the {box} every night.",
    )
    t.tell(f"Day by day, {name} grew stronger.", f"After two weeks, {name} was well again.")
    t.paragraph()
    t.says(
        elder,
        f"{name} is strong now. It is time to say goodbye.",
        "A wild animal needs to be free.",
        mood="kind",
    )
    t.tell(
        f"{hero} wanted to keep {name}, but {hero.he} knew that it was right.",
        f"{hero} swallowed hard and nodded.",
    )
    t.tell(f"They went back to {place.name}, and {hero} opened the {box}.")
    t.tell(f"{name} looked back once and then {patient.leave}.", f"{name} {patient.leave}.")
    t.says(hero, f"Goodbye, {name}!", f"Be happy, {name}!", mood="kind")
    t.perhaps(f"In spring, {hero} saw {a(patient.kind)} {spot}. Was it {name}? {hero} was sure.")
    t.moral(
        hero,
        (
            "loving somebody can mean letting go",
            "even small hands can do great good",
            "wild animals need care, and then they need to be free",
        ),
        ("was a friend to all animals", "always listened for animals that needed help"),
    )


def lost_baby(t: Teller) -> None:
    """A child takes a lost young animal from mother to mother until one is right."""
    hero = t.child()
    lost, *others = t.some(BABIES, 4)
    others = others[: 2 + t.chance()]
    mothers = [other.mother for other in (*others, lost)]
    elder = t.grownup(hero)
    t.meet(hero)
    t.paragraph()
    t.tell(
        f"{t.day()}, {hero} found a little {lost.kind} beside the road.",
        f"{t.day()}, {hero} was walking to the farm. There, all alone, stood a {lost.kind}.",
    )
    t.tell("It was shaking and crying for its mother.", "It was lost and very tired.")
    t.says(
        hero,
        "Don't cry. I will find your mother.",
        "I will take you home, little one.",
        mood="kind",
    )
    t.perhaps(f"{hero} wrapped the {lost.kind} in a scarf.", f"The {lost.kind} followed close by.")
    for other in others:
        t.paragraph()
        t.tell(
            f"{other.home}, they met {other.mother}.",
            f"They found {other.mother} {other.home}.",
        )
        t.says(hero, f"Is this your {lost.kind}?", f"Are you the mother of this {lost.kind}?")
        t.tell(
            f'"{capital(other.sound)}!" answered {other.mother}. "Mine is a {other.kind}."',
            f'"{capital(other.sound)}!" said {other.mother}. "No, I have a {other.kind}."',
        )
    t.perhaps(f"The {lost.kind} hung its head.", f"{hero} was tired, but {hero.he} went on.")
    t.paragraph()
    t.tell(f"Then {hero} met {elder}.", f"At the gate stood {elder}.")
    t.says(elder, f"Listen! Who says {lost.sound}?", f"I heard a sad {lost.sound} {lost.home}.")
    t.tell(
        f"{hero} listened. {capital(lost.home)}, somebody was calling.",
        f"They ran as fast as they could, and there, {lost.home}, was {lost.mother}.",
    )
    t.tell(f'"{capital(lost.sound)}, {lost.sound}!" cried {lost.mother}. "There is my baby!"')
    t.tell(
        f"The {lost.kind} ran to its mother and pushed its nose into her side.",
        f"The {lost.kind} gave a happy cry and ran to her.",
    )
    t.tell(
        f"{hero} had met {listed(mothers)}, all in a day.",
        f"{elder} put an arm around {hero}.",
    )
    t.says(elder, "You did not give up. Well done!", "You have a good heart.", mood="happy")
    t.evening(hero, f"the little {lost.kind}")
    t.moral(
        hero,
        (
            "everybody needs somebody to come home to",
            "you should never give up on a friend",
            "there is always somebody who is waiting for you",
        ),
        ("visited the animals every week", "looked out for everybody who was lost"),
    )


CARE_PLOTS = (hurt_animal, lost_baby)
