"""Plots about animals: each function tells one kind of story."""

from minigpt.data.stories import words
from minigpt.data.stories.grammar import a, listed
from minigpt.data.stories.props import HOARDS
from minigpt.data.stories.teller import Teller

PLEAS = (
    "Please let me in. The {} is so cold!",
    "May I come in? I am cold and wet.",
    "I have lost my way. Is there room for me?",
)
WELCOMES = (
    "Come in! There is always room for one more.",
    "It is small, but it is warm.",
    "Of course! We will move closer together.",
)


def greedy(t: Teller) -> None:
    """Somebody keeps all the food, loses it, and is helped by those who got none."""
    hoard = t.pick(HOARDS)
    hero = t.animal((hoard.kind,))
    neighbor = t.animal()
    adviser = t.wise_animal()
    t.meet(hero, hobby=False)
    t.tell(
        f"All summer long, {hero} gathered {hoard.food} and hid them in {hoard.store}."
        if hoard.food.endswith("s")
        else f"All summer long, {hero} gathered {hoard.food} and hid it in {hoard.store}."
    )
    t.perhaps(f"{hero.He} counted everything each night, and it was never enough.")
    t.paragraph()
    t.tell(
        f"{t.day()}, {a(neighbor.kind)} named {neighbor} came by.",
        f"Then a hungry {neighbor.kind} named {neighbor} knocked.",
    )
    t.says(
        neighbor,
        f"I have nothing to eat. May I have some {hoard.food}?",
        f"Please, could you give me some {hoard.food}?",
        mood="shy",
    )
    t.says(hero, "No! Find your own!", "I have none to spare!", "It is all mine!", mood="cross")
    t.tell(f"{neighbor} went away with an empty tummy.", f"{neighbor} left and said nothing.")
    t.tell(f"{adviser} shook {adviser.his} head.", f"{adviser} had heard every word.")
    t.says(
        adviser,
        "One day, you may need help, too.",
        "A full store and no friends is a poor life.",
    )
    t.perhaps(f"But {hero} only laughed.", f"{hero} did not listen.")
    t.paragraph()
    t.tell(f"A few days later, {hoard.loss}.", f"Then came a bad night: {hoard.loss}.")
    t.tell(f"{hero} had nothing left.", f"Now {hero} was the hungry one.")
    t.says(hero, f"My {hoard.food}! What shall I do?", "Now I have nothing at all!", mood="sad")
    t.tell(f"{hero} sat in the cold and cried.", f"{hero} was too ashamed to ask anybody.")
    t.tell(f"But who came up the path? It was {neighbor}.", f"{neighbor} heard about it and came.")
    t.says(neighbor, "I found some roots. You can have half.", "Come and eat with me.", mood="kind")
    t.says(hero, "But I gave you nothing!", "After I was so mean to you?", mood="shy")
    t.says(neighbor, "I know how it feels to be hungry.", "Nobody should be hungry.", mood="answer")
    t.paragraph()
    t.tell(
        f"{hero} ate, and {hero.he} felt warm inside and sorry at the same time.",
        f"They ate together, and {hero} said sorry.",
    )
    t.tell(
        f"The next summer, {hero} and {neighbor} gathered {hoard.food} together.",
        f"When summer came again, {hero} gave {neighbor} the first and best {hoard.food}.",
    )
    t.perhaps(f"{adviser} saw it and was pleased.", f"Even {adviser} got a share.")
    t.moral(
        hero,
        (
            "those who share are never poor",
            "a friend is worth more than a full store",
            "kindness is better than greed",
        ),
        ("shared every meal", "never sent a hungry animal away"),
    )


def small_helper(t: Teller) -> None:
    """A big animal laughs at a small one, and then needs exactly that one."""
    small = t.animal(("mouse", "chipmunk", "hamster", "shrew"))
    big = t.animal(("bear", "lion", "wolf", "tiger"))
    trouble, rescue = t.pick(
        (
            (
                "stepped into a net, and the ropes closed around {him}",
                "bit through the ropes, one by one",
            ),
            (
                "got a long thorn in {his} paw, and every step hurt",
                "took hold of the thorn with tiny paws and pulled it out",
            ),
            (
                "got one leg stuck between two rocks",
                "dug away the sand under the rocks, bit by bit",
            ),
        )
    )
    t.meet(small, hobby=False)
    t.tell(f"In the same forest lived a big {big.kind} named {big}.")
    t.paragraph()
    t.tell(
        f"{t.day()}, {small} met {big} on the path.",
        f"{t.day()}, {small} and {big} met at the stream.",
    )
    t.says(small, "Good day! Shall we be friends?", "If you ever need help, call me!", mood="happy")
    t.tell(f"{big} laughed so hard that the leaves shook.", f"{big} looked down and grinned.")
    t.says(
        big,
        "You? You are no bigger than my toe.",
        "What could you ever do for me?",
        "I don't need a friend as small as you.",
    )
    t.perhaps(f"{small} felt hurt, but {small.he} was polite and said goodbye.")
    t.paragraph()
    t.tell(f"Some days later, {big} {trouble}.".format(him=big.him, his=big.his))
    t.tell(f"{big} roared and pulled, but it only got worse.", f"{big} could not get free of it.")
    t.tell(
        "The other animals heard it, but they were afraid and ran away.",
        f"A bird came to look, but it could not help {big}.",
    )
    t.says(big, "Help! I need help!", "Please, somebody help me!", mood="sad")
    t.tell(
        f"{small} heard {big} and came as fast as such short legs can run.",
        f"Far away, {small} sat up and listened. Then {small.he} ran.",
    )
    t.says(small, "Hold still. I can do it.", "Don't move. This needs little paws.", mood="kind")
    t.tell(f"{small} {rescue}.", f"It took a long time, but {small} {rescue}.")
    t.paragraph()
    t.tell(f"{big} was free!" if "thorn" not in rescue else f"{big} could walk again!")
    t.says(
        big,
        "I laughed at you, and you saved me. I am sorry.",
        "You are small, but you are a great helper.",
        mood="shy",
    )
    t.says(small, "Then let's be friends now.", "I am happy that you are well.", mood="answer")
    t.tell(
        f"From then on, {small} often rode through the forest on {big}'s back.",
        "That night, they shared some berries under the moon.",
    )
    t.moral(
        big,
        (
            "nobody is too small to help",
            "a little friend can be a great friend",
            "it is wrong to laugh at somebody for being small",
        ),
        ("never laughed at small animals again", "was kind to everybody, big or small"),
    )


def race(t: Teller) -> None:
    """A race in the forest: one animal boasts, the other stops to help."""
    hero = t.animal()
    rival = t.animal()
    judge = t.wise_animal()
    prize = t.pick(("a golden leaf", "a basket of berries", "a crown of flowers", "a honey cake"))
    goal = t.pick(("the tall pine", "the stone bridge", "the old mill", "the far meadow"))
    t.meet(hero)
    t.tell(f"Every morning, {hero} ran a little, for the big race was near.")
    t.tell(
        f"{a(rival.kind)} named {rival} was faster than anybody else, and {rival.he} knew it.",
        f"The fastest of all was {a(rival.kind)} named {rival}.",
    )
    t.paragraph()
    t.tell(
        f"On the day of the race, all the animals came. The prize was {prize}.",
        f"{judge} was the judge, and {prize} was the prize.",
    )
    t.says(rival, "I will win, of course!", "You are much too slow for me!")
    t.says(hero, "Let's see. Good luck!", "I will just do my best.", mood="answer")
    t.says(judge, f"Run to {goal} and back! Ready, steady, go!")
    t.tell(f"{rival} shot away like an arrow.", f"Soon {rival} was far ahead.")
    t.tell(f"{hero} ran at a steady pace.", f"{hero} did not look left or right.")
    t.paragraph()
    if t.chance():
        t.tell(
            f"Near {goal}, {rival} tripped over a root and fell.",
            f"But {rival} ran too fast and slipped in the mud near {goal}.",
        )
        t.says(rival, "Ouch! My foot!", "Oh, I cannot get up!", mood="sad")
        t.tell(f"Now {hero} could win, but {hero.he} stopped.", f"{hero} saw it and stopped.")
        t.says(hero, "Come, lean on me.", "A race is not as important as you.", mood="kind")
        t.tell(f"Side by side, {hero} and {rival} walked back. They were the very last.")
        t.tell("But everybody clapped for them the loudest.", "It was quiet, and then all cheered.")
        t.says(
            judge,
            f"Today, {prize} goes to the kindest heart.",
            f"{hero} has won more than a race.",
            mood="kind",
        )
        t.tell(f"{rival} was ashamed and said sorry for the boasting.")
        truths = ("being kind is better than winning", "a friend is worth more than a prize")
        habits = ("always stopped to help", "had a new friend to run with")
    else:
        t.tell(
            f"At {goal}, {rival} looked back and saw nobody.",
            f"{rival} was so far ahead that it became boring.",
        )
        t.says(rival, "I have time for a little nap.", "I will rest and eat some berries first.")
        t.tell(f"{hero} was tired, but {hero.he} kept going, step after step.")
        t.tell(
            f"When {rival} looked up again, {hero} was almost back.",
            f"{rival} could not catch up.",
        )
        t.says(judge, f"{hero} is the winner!", f"The prize goes to {hero}!")
        t.tell(f"{hero} got the prize and shared the joy with everybody.")
        t.says(rival, "You never stopped. Well done.", "Next time, I will not boast.", mood="shy")
        truths = ("it is better to keep going than to boast", "steady work wins in the end")
        habits = ("kept going when things were hard", "ran every morning, steady as ever")
    t.evening(hero, "the race")
    t.moral(hero, truths, habits)


def room_for_all(t: Teller) -> None:
    """On a stormy night, one guest after the other needs a place by the fire."""
    hero = t.animal(("mouse", "rabbit", "hedgehog", "mole"))
    kinds = ("squirrel", "frog", "badger", "fox", "otter", "raccoon")
    guests = [t.animal(kinds) for _ in range(2 + t.chance())]
    treat = t.pick(words.TREATS)
    storm = t.pick(("snow", "rain", "hail"))
    t.meet(hero, hobby=False)
    t.tell(
        f"{hero.His} home was nice and warm, but just big enough for one.",
        f"That winter, {hero} had a fire and a soft bed, but room for only one.",
    )
    t.paragraph()
    t.tell(
        f"One evening, the wind howled, and {storm} came down on the roof.",
        f"One night, there was a storm with wind and {storm}.",
    )
    t.tell(f"{hero} had just sat down with some {treat}.", f"{hero} was about to eat {treat}.")
    for guest, plea, welcome in zip(guests, t.some(PLEAS, 3), t.some(WELCOMES, 3), strict=False):
        t.paragraph()
        t.tell(
            f"Knock, knock! There stood {a(guest.kind)} named {guest}.",
            f"Then {a(guest.kind)} named {guest} came to the door.",
        )
        t.says(guest, plea.format(storm), mood="shy")
        t.says(hero, welcome, mood="kind")
    t.paragraph()
    t.tell("Now it was so full that nobody could turn around.", "They sat nose to nose.")
    t.tell(f"They shared the {treat}. It was not much, but nobody minded.")
    t.perhaps(f"{guests[0]} told a long story.", f"{guests[-1]} sang a song about summer.")
    t.tell("Then the fire went out, and it became cold.", "In the night, a part of the roof broke.")
    t.says(hero, "Oh no! What shall we do now?", "I cannot fix this alone!", mood="sad")
    t.says(guests[0], "You are not alone.", "You helped us, and now we will help you.", mood="kind")
    t.tell(f"{listed([guest.name for guest in guests])} went to work, and soon it was warm again.")
    t.tell(f"In the morning, the storm was over, and {hero} had new friends.")
    t.moral(
        hero,
        (
            "there is always room for a friend",
            "a warm heart makes a small home big",
            "those who help others are never alone",
        ),
        ("never felt alone again", "kept the door open for everybody"),
    )


ANIMAL_PLOTS = (greedy, small_helper, race, room_for_all)
