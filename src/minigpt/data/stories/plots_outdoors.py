"""Plots that play outdoors: each function tells one kind of story."""

from minigpt.data.stories import words
from minigpt.data.stories.grammar import a, capital
from minigpt.data.stories.props import PLANTS
from minigpt.data.stories.teller import Teller


def lost_toy(t: Teller) -> None:
    """A toy is lost while the hero runs after something, and that is where it is found."""
    hero, toy, place = t.child(), t.toy(), t.pick(words.PLACES)
    helper = t.friend(hero) if t.chance() else t.grownup(hero)
    seen = t.pick(("a white butterfly", "a funny frog", "a blue bird", "a little lizard"))
    first, second, last = t.some(place.spots, 3)
    t.meet(hero)
    t.tell(
        f"{hero.His} favorite thing in the whole world was {a(toy)}.",
        f"Wherever {hero} went, {hero.his} {toy} went, too.",
        f"{hero} had {a(toy)}, a present from {t.pick(('Grandma', 'Grandpa', 'a friend'))}.",
    )
    t.paragraph()
    t.tell(
        f"{t.day()}, {hero} took the {toy} to {place.name}.",
        f"{t.day()}, {hero} was {place.at} with the {toy}.",
    )
    t.tell(
        f"There {hero.he} saw {seen} and ran after it.",
        f"{hero} put the {toy} down for a moment to follow {seen}.",
    )
    t.tell(
        f"When it was time to go home, the {toy} was gone.",
        f"Later, {hero} looked around, but the {toy} was not there anymore.",
    )
    t.says(hero, f"Oh no! Where is my {toy}?", f"My {toy} is gone!", mood="sad")
    t.paragraph()
    t.tell(
        f"{hero} looked {first}, but there was only an old shoe.",
        f"{hero} looked {first}. There was nothing but dust and leaves.",
    )
    t.tell(f"Then {hero.he} searched {second}. No {toy}!", f"It was not {second}, either.")
    t.perhaps(f"{hero} sat down and began to cry.", "The sun was getting low.")
    t.tell(f"Just then, {helper} came along.", f"{helper} heard {hero} and came over.")
    t.says(helper, "Why are you so sad?", "What is wrong?", mood="kind")
    t.says(hero, f"I cannot find my {toy}.", f"I have lost my {toy}.", mood="sad")
    t.says(
        helper,
        "Think back. What were you doing when you last had it?",
        "Don't cry. Where did you go first?",
        mood="kind",
    )
    t.says(hero, f"I was following {seen}!", f"I ran after {seen}!", mood="answer")
    t.paragraph()
    t.tell(
        f"So they went the same way again, and there it was, {last}: the {toy}!",
        f"Together they followed {hero.his} footsteps. {capital(last)}, something "
        f"{toy.split()[0]} was waiting. It was the {toy}!",
    )
    t.tell(f"{hero} hugged the {toy} tightly.", f"{hero} jumped for joy.")
    t.says(hero, f"Thank you, {helper}!", "Thank you for helping me!", mood="happy")
    t.perhaps(f"On the way home, {hero} held the {toy} with both hands.")
    t.evening(hero, f"the {toy}")
    t.moral(
        hero,
        (
            "it helps to stop and think when something is lost",
            "we should look after the things we love",
            "looking is easier with two",
        ),
        ("took good care of the " + toy, f"never left the {toy} alone again"),
    )


def growing(t: Teller) -> None:
    """A seed needs more patience than the hero has at first."""
    hero, plant = t.hero(), t.pick(PLANTS)
    elder = t.grownup(hero)
    pot = f"{t.pick(words.COLORS)} pot"
    t.meet(hero, hobby=False)
    t.paragraph()
    t.tell(
        f"{t.day()}, {elder} gave {hero} {a(plant.seed)} and {a(pot)}.",
        f"{t.day()}, {hero} found {a(plant.seed)}. {elder} gave {hero.him} {a(pot)}.",
    )
    t.says(
        elder,
        "Give it water and light, and then wait.",
        "Something wonderful is sleeping in there.",
        mood="kind",
    )
    t.tell(f"{hero} put the {plant.seed} into the earth and set the {pot} in the sun.")
    t.tell(
        f"The next morning, {hero} ran to the {pot}. There was only earth.",
        f"After one day, {hero} looked into the {pot}. Nothing!",
    )
    t.says(hero, "Why does it not grow?", "How long does it take?", "It is broken!", mood="sad")
    t.says(elder, "Good things take time.", "It is growing where you cannot see it.", mood="answer")
    t.paragraph()
    t.tell(
        f"{hero} sang to the {pot}, and {hero.he} even danced for it, but nothing happened.",
        f"{hero} wanted to dig up the {plant.seed} and look, but {elder} shook a finger.",
        f"{hero} gave it so much water that a puddle ran out of the {pot}.",
    )
    t.tell("Days went by. It rained, and the sun came out again.", "A whole week went by.")
    t.tell(
        f"Every day, {hero} gave the {plant.seed} a little water and waited.",
        f"{hero} learned to wait. A little water, a little sun, every day.",
    )
    t.paragraph()
    t.tell(
        f"And then, one morning, {plant.sprout} came out of the earth!",
        f"One morning, {hero} saw {plant.sprout} in the {pot}.",
    )
    t.says(hero, "It is alive!", "Come and look! It is growing!", mood="happy")
    t.perhaps(f"{elder} came running in slippers to see it.", f"{hero} did not dare to touch it.")
    t.tell(
        f"By the end of summer, it had become {plant.grown}.",
        f"It grew and grew. In the end, there was {plant.grown}.",
    )
    t.tell(f"{hero} and {elder} {plant.use}.", f"Then {hero} {plant.use}, and {elder} helped.")
    t.tell(f"{hero} kept the {pot} for the next year.", f"{hero} was very proud.")
    t.moral(
        hero,
        (
            "good things take time",
            "patience brings sweet rewards",
            "growing is slow, quiet work",
        ),
        ("was much better at waiting", "planted something new every spring"),
    )


def rain(t: Teller) -> None:
    """Rain spoils a day out, and a new idea saves it."""
    hero, place, treat = t.child(), t.pick(words.PLACES), t.pick(words.TREATS)
    friend, elder = t.friend(hero), t.grownup(hero)
    t.meet(hero)
    t.tell(
        f"All week, {hero} and {hero.his} friend {friend} had talked of a picnic {place.at}.",
        f"{hero} and {hero.his} friend {friend} had planned a picnic {place.at}.",
    )
    t.perhaps(f"{elder} had made {treat} for it.", f"{hero} had packed the basket alone.")
    t.paragraph()
    t.tell(
        "But when the day came, the sky was gray, and rain fell on the roof.",
        "But that morning, there was thunder, and the rain came down in buckets.",
    )
    t.tell(f"{hero} pressed {hero.his} nose against the window.", f"{hero} looked at the basket.")
    t.says(hero, f"Now we cannot go to {place.name}!", "Our day is ruined!", mood="sad")
    t.tell(
        f"{friend} came in with dripping boots and a long face.",
        f"{friend} arrived under a big umbrella and looked just as sad.",
    )
    t.perhaps("They told the rain to stop, but the rain did not listen.")
    t.says(
        elder,
        "If we cannot go to the picnic, the picnic can come to us.",
        "Who says that a picnic must be outside?",
        mood="kind",
    )
    t.paragraph()
    t.tell(f"{hero} began to smile.", f"{hero}'s eyes grew wide.")
    t.says(
        hero,
        f"We can make {place.name} right here!",
        f"Let's play that this is {place.name}!",
        mood="happy",
    )
    t.tell("They spread a blanket on the floor.", "They built a tent out of chairs and sheets.")
    t.tell(
        f"{friend} painted a big yellow sun, and they hung it on the wall.",
        f"{friend} cut flowers and clouds out of paper.",
    )
    t.tell(f"Then they sat down and ate {treat}.", f"The {treat} tasted better than ever.")
    t.tell(
        "They told stories while the rain drummed on the roof.",
        f"{elder} played the guitar, and they all sang louder than the rain.",
    )
    if t.chance():
        t.tell("When the rain stopped, there was a rainbow.", "At last, the sun came out.")
        t.tell(f"{hero} and {friend} ran outside and jumped in every puddle.")
    t.says(friend, "This was better than a real picnic!", "I hope it rains again!", mood="happy")
    t.evening(hero, "the picnic on the floor")
    t.moral(
        hero,
        ("a good idea can save a rainy day", "fun does not need sunshine"),
        ("was never cross about the rain again", "made the best of every rainy day"),
    )


def adventure(t: Teller) -> None:
    """Two friends follow a path, get lost, and find home with what they left behind."""
    hero = t.hero()
    friend = t.friend(hero)
    trail = t.pick(("white pebbles", "red ribbons", "blue buttons", "yellow feathers"))
    goal, inside = t.pick(
        (
            ("old boat", "rusty lamp"),
            ("hollow tree", "tiny bell"),
            ("small cave", "shiny stone"),
            ("ruined tower", "golden coin"),
        )
    )
    way = t.pick(("past the mill", "along the river", "over three hills", "through tall ferns"))
    t.meet(hero)
    t.tell(
        f"In {hero.his} bag, {hero} always carried a handful of {trail}.",
        f"{hero} had a whole bag of {trail}.",
    )
    t.paragraph()
    t.tell(
        f"{t.day()}, {hero} and {hero.his} friend {friend} found a path that was new to them.",
        f"{t.day()}, {hero} and {hero.his} friend {friend} saw a narrow path in the grass.",
    )
    t.says(friend, "Let's find out where it goes!", "I wonder what is at the end!", mood="happy")
    t.says(
        hero,
        f"I will drop some {trail}, so that we can find the way back.",
        f"Wait. First, I will mark the way with {trail}.",
        mood="answer",
    )
    t.tell(f"The path led them {way}.", f"They walked {way}, farther than ever before.")
    t.perhaps("A deer looked at them and ran away.", "They heard a woodpecker far away.")
    t.tell(f"At the end of the path was {a(goal)}.", f"Then they saw it: {a(goal)}!")
    t.tell(
        f"They looked inside and found {a(inside)}.",
        f"Inside, under dry leaves, lay {a(inside)}.",
    )
    t.paragraph()
    t.tell(
        "But now it was late, and fog came up between the trees.",
        "When they turned around, it was getting dark, and every tree looked the same.",
    )
    t.says(friend, "We are lost!", "I want to go home!", "Which way did we come?", mood="sad")
    t.tell(
        f"{hero} was scared, too, but then {hero.he} remembered the {trail}.",
        f"{hero} took {friend} by the hand and thought of the {trail}.",
    )
    t.says(hero, f"Look for the {trail}. They will lead us home.", "Don't cry. I marked the way!")
    t.tell(
        f"One by one, they found the {trail}, {way} and back to the old gate.",
        f"They went from one to the next, and the {trail} led them home.",
    )
    t.tell(
        "At home, soup was waiting on the table.",
        "The lights of home had never looked so warm.",
    )
    t.says(
        friend,
        f"How clever you are, {hero}!",
        "I am glad that you planned ahead!",
        mood="happy",
    )
    t.tell(
        f"{hero} put the {inside} on the shelf.",
        f"They kept the {inside} as their secret treasure.",
    )
    t.evening(hero, f"the {goal}")
    t.moral(
        hero,
        (
            "it is wise to think ahead",
            "a good plan brings you home",
            "an adventure is best when you know the way back",
        ),
        ("always made a plan before an adventure", "never went anywhere without a plan"),
    )


OUTDOOR_PLOTS = (lost_toy, growing, rain, adventure)
