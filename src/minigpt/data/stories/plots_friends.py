"""Plots about friends and about growing: each function tells one kind of story."""

from minigpt.data.stories import words
from minigpt.data.stories.grammar import a
from minigpt.data.stories.props import PROJECTS, SKILLS
from minigpt.data.stories.teller import Teller


def birthday(t: Teller) -> None:
    """Everybody seems to have forgotten the hero's birthday."""
    hero, toy, treat = t.hero(), t.toy(), t.pick(words.TREATS)
    friend, elder = t.friend(hero), t.grownup(hero)
    place = t.place(hero)
    t.meet(hero)
    t.tell(
        f"More than anything, {hero} wished for {a(toy)}.",
        f"In the shop window stood {a(toy)}, and {hero} looked at it every day.",
    )
    t.paragraph()
    t.tell(
        f"One morning, {hero} jumped out of bed. It was {hero.his} birthday!",
        f"At last, {hero}'s birthday came. {hero.He} woke up very early.",
    )
    t.tell(f"But {elder} only said good morning.", f"But {elder} did not say a word about it.")
    t.says(hero, "Do you know what day it is?", "Is today not a special day?")
    t.says(elder, "It is a good day to clean up.", "It is a day like any other.", mood="answer")
    t.tell(
        f"{hero} went to see {hero.his} friend {friend}, but {friend} had no time.",
        f"{hero} met {hero.his} friend {friend}, but {friend} hid something and hurried away.",
    )
    t.perhaps("What was going on?", "That was very strange.", "Nobody had time to talk.")
    t.tell(f"{hero} felt sad and alone.", f"A tear ran down {hero}'s face.")
    t.says(hero, "They have all forgotten me.", "Nobody remembers my birthday.", mood="sad")
    t.paragraph()
    t.tell(
        f"In the afternoon, {elder} asked {hero} to come along to {place.name}.",
        f"Later, {elder} took {hero.him} along to {place.name}.",
    )
    t.tell(f"{hero} walked slowly and looked at the ground.", "It was very quiet there.")
    t.tell(
        f"Then {friend} jumped out from {t.pick(('behind a tree', 'behind a big box'))}!",
        f"All at once, {friend} and all the others jumped up!",
    )
    t.says(
        friend,
        f"Surprise! Happy birthday, {hero}!",
        "Surprise! We did not forget you!",
        mood="happy",
    )
    t.tell(f"There were lights, music, and {treat}.", f"There was a table full of {treat}.")
    t.perhaps(f"{hero} laughed and cried at the same time.", "Everybody sang and clapped.")
    t.tell(
        f"{friend} gave {hero} a box with a bow. Inside was {a(toy)}!",
        f"{elder} had one more present. It was {a(toy)}, just as {hero} had wished.",
    )
    t.says(hero, "This is the best birthday ever!", "You remembered!", mood="happy")
    t.evening(hero, f"the party and the {toy}")
    t.moral(
        hero,
        ("good friends do not forget you", "those who love you will not forget you"),
        (
            "trusted that good friends do not forget",
            "planned a surprise for every friend's birthday",
        ),
    )


def new_friend(t: Teller) -> None:
    """Somebody new is shy, and the hero finds out what the newcomer is good at."""
    hero = t.child()
    friend, teacher = t.child(), t.neighbor()
    place = t.pick(words.PLACES)
    toy = t.toy()
    t.meet(hero)
    t.paragraph()
    t.tell(
        f"{t.day()}, a new {friend.kind} came to {place.name}. {friend.His} name was {friend}.",
        f"{t.day()}, a {friend.kind} named {friend} moved in next door. "
        f"{hero} first saw {friend.him} {place.at}.",
    )
    t.tell(
        f"{friend} stood all alone and held {a(toy)}.",
        f"{friend} did not talk to anybody and only looked at the {toy} in {friend.his} hands.",
    )
    t.tell("The other children ran past and did not stop.", "Nobody asked the new child to play.")
    t.perhaps(f"{hero} remembered how it felt to be alone.", f"{hero} felt sorry for {friend}.")
    t.paragraph()
    t.tell(f"So {hero} walked over.", f"{hero} was a little shy, too, but went over anyway.")
    t.says(
        hero,
        f"Hi, I am {hero}. Do you want to play?",
        f"I like your {toy}. What is your name?",
        mood="kind",
    )
    t.says(
        friend,
        f"I am {friend}. I don't know your games.",
        f"My name is {friend}. I am new here.",
        mood="shy",
    )
    t.says(
        hero,
        "That is all right. I will show you!",
        "Then let's play together!",
        mood="happy",
    )
    game = t.pick(("hide and seek", "tag", "catch", "pirates", "follow the leader"))
    t.tell(
        f"They played {game}, and soon {friend} began to smile.",
        f"{hero} explained how to play {game}, and {friend} learned it fast.",
    )
    t.paragraph()
    t.tell(
        f"While they were playing, {hero} fell and hurt one knee. {friend} ran for help.",
        f"Then {hero} got stuck in a bush, and {friend} pulled until {hero} was free.",
        f"When {hero} did not know what to play next, {friend} made up a game with the {toy}.",
    )
    t.perhaps(f"{teacher} saw it all and smiled.", f"{teacher} waved to them from the path.")
    t.says(hero, "You are a good friend!", "I am so glad that you are here!", mood="happy")
    t.tell(f"{friend} was not shy anymore.", f"{friend} laughed out loud for the first time.")
    t.tell(
        f"Before they went home, {friend} let {hero} hold the {toy}.",
        f"{friend} and {hero} promised to meet {place.at} again the next day.",
    )
    t.evening(hero, f"{hero.his} new friend")
    t.moral(
        hero,
        (
            "one kind word can start a friendship",
            "a stranger may be a friend you do not know yet",
        ),
        ("always said hello to new children", "had a new best friend"),
    )


def building(t: Teller) -> None:
    """Two friends build something; it breaks, and they build it better."""
    hero, project = t.hero(), t.pick(PROJECTS)
    friend, elder = t.friend(hero), t.grownup(hero)
    thing = project.what.split(" ", 1)[1]
    t.meet(hero)
    t.perhaps(f"{hero.His} best friend was {a(friend.kind)} named {friend}.")
    t.paragraph()
    t.tell(f"One day, {hero} had an idea.", f"One day, {hero} could not sit still.")
    t.says(
        hero,
        f"Let's build {project.what} {project.where}!",
        f"We could build {project.what} {project.where}!",
        mood="happy",
    )
    t.says(
        friend,
        "Yes, let's start right away!",
        "I have always wanted to do that!",
        mood="answer",
    )
    t.tell(f"They went to work at once and {project.start}.")
    t.perhaps("It was harder than it looked.", "They worked all morning without a break.")
    t.paragraph()
    t.tell(f"Just when they were almost done, {project.ruin}.", f"But then {project.ruin}.")
    t.tell(f"{friend} kicked at the ground.", f"{friend} wanted to cry.", f"{friend} sat down.")
    t.says(friend, "It is no use. I give up!", "All that work for nothing!", mood="cross")
    t.tell(
        f"{hero} was sad, too, but {hero.he} looked closely at the broken {thing}.",
        f"{hero} took a deep breath and looked at what was left of the {thing}.",
    )
    if t.chance():
        t.tell(f"Just then, {elder} came by and saw their long faces.")
        t.says(
            elder,
            "Every builder has to try more than once. What could you change?",
            "Don't be sad. Look closely. Why did it go wrong?",
            mood="kind",
        )
    t.says(hero, f"I know! We must {project.better}.", f"Next time, we should {project.better}.")
    t.paragraph()
    t.tell(
        "So they started again, slowly and carefully.",
        f"{friend} nodded, and they began again.",
    )
    t.tell(
        f"{hero} held things in place while {friend} did the rest.",
        f"This time, {hero} and {friend} helped each other with every step.",
    )
    t.tell(f"And this time, {project.done}.", f"In the end, {project.done}!")
    t.says(friend, "We did it!", "I am glad that we tried again!", mood="happy")
    t.perhaps(f"{hero} and {friend} jumped up and down and hugged each other.")
    t.evening(hero, f"the {thing}")
    t.moral(
        hero,
        (
            "you should not give up when something goes wrong",
            "a mistake can show you a better way",
            "with patience and a good friend, you can build almost anything",
        ),
        ("tried again when something went wrong", "never gave up after the first try"),
    )


def learning(t: Teller) -> None:
    """The hero cannot do something yet, and practices until it works."""
    hero, skill = t.child(), t.pick(SKILLS)
    friend, elder = t.friend(hero), t.grownup(hero)
    t.meet(hero)
    t.tell(
        f"{hero.His} friend {friend} could {skill.do}, but {hero} could not.",
        f"All the others, even little {friend}, could {skill.do}. {hero} could not.",
    )
    t.paragraph()
    t.tell(f"{t.day()}, {hero} wanted to learn it.", f"{t.day()}, {hero} tried it alone.")
    t.tell(f"But {skill.fail}.", f"{hero.He} tried and tried, but {skill.fail}.")
    t.perhaps(f"{hero.He} tried again, and {skill.fail}.", "The second time was no better.")
    t.says(hero, f"I will never learn to {skill.do}!", f"I hate {skill.doing}!", mood="sad")
    t.tell(f"{friend} did not laugh.", f"{friend} came and sat down beside {hero}.")
    t.says(friend, "It took me a long time, too.", "Nobody can do it the first time.", mood="kind")
    t.paragraph()
    t.tell(f"The next day, {elder} had time to help.", f"Then {hero} asked {elder} for help.")
    t.says(elder, f"I will tell you a secret. {skill.tip}", skill.tip, mood="kind")
    t.tell(f"{hero} listened and tried it that way.", f"{hero} nodded and tried once more.")
    t.tell("It was a little better this time.", "It did not work yet, but it almost did.")
    t.tell(
        f"Every day after that, {hero} practiced for a while.",
        f"{hero} practiced on Monday, on Tuesday, and all week long.",
    )
    t.perhaps("Some days were good, and some days were bad.", f"{friend} often came to watch.")
    t.paragraph()
    t.tell(f"Then, one day, it happened. {hero} {skill.win}!", f"And one day, {hero} {skill.win}!")
    t.says(hero, f"Look! I can {skill.do}!", "I did it! I really did it!", mood="happy")
    t.tell(f"{elder} clapped, and {friend} cheered.", f"{friend} ran to tell everybody.")
    t.perhaps(f"Soon {hero} was teaching the little ones how to {skill.do}.")
    t.evening(hero, f"{skill.doing}")
    t.moral(
        hero,
        (
            "practice makes hard things easy",
            "learning takes time",
            "everybody has to start somewhere",
        ),
        ("practiced a little every day", "was not afraid of hard things anymore"),
    )


FRIEND_PLOTS = (birthday, new_friend, building, learning)
