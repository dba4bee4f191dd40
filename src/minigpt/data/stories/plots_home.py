"""Plots about home, family and friends: each function tells one kind of story."""

from minigpt.data.stories import words
from minigpt.data.stories.grammar import a
from minigpt.data.stories.props import FEARS, MESSES, TASKS
from minigpt.data.stories.teller import Teller


def sharing(t: Teller) -> None:
    """Two friends quarrel over one toy, and find out that turns are more fun."""
    hero, toy = t.hero(), t.toy()
    friend = t.friend(hero)
    elder = t.grownup(hero)
    t.meet(hero)
    t.tell(
        f"{hero} had {a(toy)}, and nobody else was allowed to touch it.",
        f"{hero.He} had {a(toy)} and played with it every single day.",
        f"For {hero.his} birthday, {hero} got {a(toy)} from {elder}.",
    )
    t.paragraph()
    t.tell(
        f"{t.day()}, {hero.his} friend {friend} came over to play.",
        f"{t.day()}, a friend named {friend} knocked on {hero}'s door.",
    )
    t.says(friend, f"What a nice {toy}! May I try it?", f"Can I play with your {toy}, please?")
    t.says(hero, "No, it is mine!", "No! You might break it!", "Go away, it is mine!", mood="cross")
    t.tell(
        f"{hero} held the {toy} so tightly that {hero.his} fingers hurt."
        if hero.kind in ("girl", "boy")
        else f"{hero} held the {toy} tightly with both paws.",
        f"{friend} pulled on one side of the {toy}, and {hero} pulled on the other.",
        f"{hero} turned around and hid the {toy}.",
    )
    t.tell(f"{friend} sat down by the wall and began to cry.", f"{friend} looked very sad.")
    t.paragraph()
    t.tell(
        f"So {hero} played alone. After a while, it was not much fun.",
        f"{hero} played all alone, but soon {hero.he} was bored.",
        f"The room became very quiet. Playing alone felt lonely, even with the {toy}.",
    )
    t.tell(f"{elder} saw what had happened.", f"{elder} came in and sat down next to {hero}.")
    t.says(
        elder,
        "A toy is only a toy, but a friend can laugh with you.",
        f"The {toy} cannot laugh with you. {friend} can.",
        "If you take turns, you will both be happy.",
        "How would you feel if nobody shared with you?",
        mood="kind",
    )
    t.perhaps(f"{hero} thought about it for a long time.", f"{hero} looked at the floor.")
    t.paragraph()
    t.tell(f"{hero} walked over to {friend}.", f"Slowly, {hero} held out the {toy}.")
    t.says(hero, "I am sorry. You can have the first turn.", "I was mean. Let's take turns.")
    t.tell(f"{friend} smiled and wiped away a tear.", f"{friend}'s face lit up.")
    t.perhaps(
        f"{friend} even knew a new game that they could play with the {toy}.",
        f"In return, {friend} brought some {t.pick(words.TREATS)} for both of them.",
    )
    t.tell(
        f"They played with the {toy} until it was dark, and they laughed the whole time.",
        f"First {friend} had a turn, then {hero}, and the {toy} had never been so much fun.",
    )
    t.evening(hero, f"the games with {friend}")
    t.moral(
        hero,
        (
            "sharing makes every game better",
            "a toy is more fun with a friend",
            "to share is to care",
        ),
        ("always shared with friends", "let everybody have a turn"),
    )


def night_noise(t: Teller) -> None:
    """A child is afraid of something at night, and finds out what it really is."""
    hero = t.child()
    elder, fear = t.grownup(hero), t.pick(FEARS)
    toy = t.toy()
    t.meet(hero, hobby=False)
    t.tell(
        f"There was one thing {hero} did not like, and that was the dark.",
        f"{hero} was not afraid of dogs or deep water, but {hero.he} feared the dark.",
        f"{hero} could do many things, but sleeping in the dark was hard.",
    )
    t.tell(
        f"{hero.He} always slept with {hero.his} {toy} close by.",
        f"Only {hero.his} {toy} made it a little better.",
    )
    t.paragraph()
    t.tell(
        f"One night, {hero} {fear.sense} {fear.what} {fear.where}.",
        f"One {t.pick(('cold', 'windy', 'dark', 'stormy'))} night, {hero} woke up. "
        f"{hero.He} {fear.sense} {fear.what} {fear.where}.",
    )
    t.says(hero, f"It must be {fear.guess}!", f"What if it is {fear.guess}?", mood="shy")
    t.tell(
        f"{hero} pulled the blanket over {hero.his} head.",
        f"{hero.His} heart went boom, boom, boom.",
        f"{hero} held {hero.his} breath and did not move.",
    )
    t.perhaps("Then it came again!", "It did not go away.", "The house was very still.")
    t.tell(f"At last, {hero.he} called for {elder}.", f"{hero} ran to find {elder}.")
    t.paragraph()
    t.says(
        elder,
        "What is the matter?",
        "Why are you not asleep?",
        "Did you have a bad dream?",
        mood="kind",
    )
    t.says(hero, f"There is {fear.guess} {fear.where}!", f"I {fear.sense} {fear.what}!", mood="sad")
    t.tell(f"{elder} did not laugh.", f"{elder} gave {hero} a hug.")
    t.says(
        elder,
        "Let's go and look together.",
        "Being brave does not mean that you are not afraid. Take my hand.",
        "Things look smaller up close. Shall we see?",
        mood="kind",
    )
    t.tell(
        f"{hero} took a lamp in one hand and held on to {elder} with the other.",
        f"Step by step, they walked through the dark, and {hero} held the lamp.",
        f"{hero} was still scared, but {hero.he} nodded and picked up the lamp.",
    )
    t.paragraph()
    t.tell(
        f"{hero} held up the light. It was only {fear.truth}!",
        f"And what did they find? It was not {fear.guess} at all. It was {fear.truth}.",
        f"There was no {fear.guess.split(' ', 1)[1]}. There was just {fear.truth}.",
    )
    t.says(hero, "Is that all?", "I was afraid of that!", "How silly of me!", mood="happy")
    t.tell(
        f"{hero} and {elder} laughed until their sides hurt.",
        f"{hero} felt very brave, and {elder} was proud.",
    )
    t.perhaps(f"{elder} tucked {hero} in, with the {toy} beside the pillow.")
    t.tell(f"Soon {hero} was fast asleep.", f"That night, {hero} slept well until morning.")
    t.moral(
        hero,
        (
            "scary things are often harmless when we look closely",
            "being brave means taking a step even when you are afraid",
            "it is good to ask for help when you are scared",
        ),
        ("was not so afraid of the dark", "took a good look before getting scared"),
    )


def telling_truth(t: Teller) -> None:
    """Something gets spoiled, and the hero finds the courage to tell."""
    hero = t.child()
    elder, mess = t.grownup(hero), t.pick(MESSES)
    pet = t.animal(("cat", "dog", "puppy", "kitten"))
    t.meet(hero)
    t.tell(
        f"{hero} had a {pet.kind} named {pet}, who followed {hero.him} everywhere.",
        f"{hero} and {hero.his} {pet.kind} {pet} were always together.",
    )
    t.paragraph()
    t.tell(
        f"{t.day()}, {hero} {mess.deed}.",
        f"{t.day()}, while {elder} was outside, {hero} {mess.deed}.",
    )
    t.perhaps(
        f"{hero.He} knew that it was not allowed.",
        f"{elder} had told {hero.him} to be careful, but {hero} was having too much fun.",
    )
    t.tell(f"Suddenly, {mess.accident}.", f"Then {mess.accident}.")
    t.says(hero, "Oh no!", "Oh no! What have I done?", "Oh dear!", mood="sad")
    t.tell(f"Quickly, {hero} {mess.hide}.", f"{hero} was scared, so {hero.he} {mess.hide}.")
    t.paragraph()
    t.tell(f"A little later, {elder} came in.", f"Soon {elder} came back.")
    t.says(elder, f"What happened to {mess.thing}?", f"Who did this to {mess.thing}?")
    blames_pet = t.chance()
    if blames_pet:
        t.says(hero, f"It was {pet}!", f"I think {pet} did it.", mood="shy")
        t.tell(
            f"{pet} looked up with big, sad eyes.",
            f"Poor {pet} crept under the table.",
        )
    else:
        t.says(hero, "I don't know.", "I did not see anything.", mood="shy")
        t.tell(f"{hero}'s cheeks turned red.", f"{hero} could not look at {elder}.")
    t.tell(
        f"All through dinner, {hero} had a heavy feeling in {hero.his} tummy.",
        f"{hero} tried to play, but {hero.he} could only think about the lie.",
        f"The lie felt like a stone in {hero}'s pocket.",
    )
    t.paragraph()
    t.tell(f"At last, {hero} went to {elder}.", f"{hero} took a deep breath.")
    t.says(
        hero,
        f"I have to tell you something. {mess.confess}, and I am sorry.",
        f"It was me. {mess.confess}.",
        mood="shy",
    )
    t.says(
        elder,
        "Thank you for telling me. That was brave.",
        "I am sad about it, but I am glad that you told the truth.",
        "Everybody makes mistakes. Telling the truth is what counts.",
        mood="kind",
    )
    t.tell(f"Together, they {mess.fix}.", f"Then {hero} and {elder} {mess.fix}.")
    if blames_pet:
        t.tell(f"{hero} gave {pet} a long hug and said sorry to {pet.him}, too.")
    t.perhaps(f"The heavy feeling was gone, and {hero} felt as light as a feather.")
    t.evening(hero, f"{pet} and the long day")
    t.moral(
        hero,
        (
            "it is best to tell the truth, even when it is hard",
            "a lie is heavier than the truth",
        ),
        ("always told the truth", "said so at once when something went wrong"),
    )


def helping_neighbor(t: Teller) -> None:
    """A child helps an old neighbor and gets more than expected."""
    hero, task, treat = t.child(), t.pick(TASKS), t.pick(words.TREATS)
    elder = t.neighbor()
    friend = t.friend(hero)
    t.meet(hero)
    t.tell(
        f"Next door lived {elder}, who was very old and walked with a stick.",
        f"At the end of the street lived {elder}, whose back was bent with age.",
    )
    t.paragraph()
    t.tell(
        f"{t.day()}, {hero} was on the way to {hero.his} friend {friend}. {elder} {task.seen}.",
        f"{t.day()}, {hero} went out to see a friend, {friend}. {elder} {task.seen}.",
    )
    t.says(elder, f"Oh dear! {task.trouble}", f"{task.trouble} What shall I do?", mood="sad")
    t.tell(
        f"{hero} wanted to go and play, but {hero.he} could not just walk past.",
        f"{hero} stopped. {elder} looked so tired.",
    )
    t.says(hero, "Wait, I will help you!", "May I help you?", "I can do that for you!", mood="kind")
    t.perhaps(f"{elder} smiled for the first time that day.", f"{elder} was surprised.")
    t.paragraph()
    t.tell(f"{hero} {task.work}.", f"So {hero} {task.work}.")
    t.tell(
        f"It was hard work, and soon {hero.his} arms were tired.",
        "It took much longer than they had thought.",
        f"{elder} told funny stories from long ago while they worked.",
    )
    if t.chance():
        t.tell(f"Then {friend} came by.", f"After some time, {friend} came along the street.")
        t.says(friend, "There you are! Let me help, too.", "With three of us, it will go faster!")
    t.tell(f"In the end, {task.done}.", f"Before the sun went down, {task.done}.")
    t.paragraph()
    t.says(
        elder,
        f"Thank you, {hero}! You have a kind heart.",
        "How can I ever thank you?",
        mood="happy",
    )
    t.says(hero, "It was nothing.", "I was happy to help.", "It was fun!", mood="answer")
    t.tell(
        f"{elder} went into the kitchen and came back with some {treat}.",
        f"{elder} opened the door, and the whole house smelled of {treat}.",
    )
    t.tell(
        f"They sat on the steps and ate the {treat} together.",
        f"Nothing had ever tasted as good as the {treat}.",
    )
    t.perhaps(f"From then on, {hero} visited {elder} every week.")
    t.evening(hero, f"{elder} and the {treat}")
    t.moral(
        hero,
        (
            "helping others makes you happy, too",
            "a little help can mean a lot to somebody",
            "kindness always finds its way back",
        ),
        ("looked around for people who needed help", "never walked past somebody in need"),
    )


HOME_PLOTS = (sharing, night_noise, telling_truth, helping_neighbor)
