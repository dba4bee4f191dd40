"""The word tables that the stories are made of."""

from typing import NamedTuple


class Hobby(NamedTuple):
    """What the hero likes to do, and how it comes back in the evening."""

    do: str
    did: str


class Place(NamedTuple):
    """Somewhere to play, with spots where a thing can hide."""

    name: str
    at: str
    spots: tuple[str, ...]


GIRLS = (
    *("Lily", "Mia", "Anna", "Sue", "Emma", "Ella", "Zoe", "Rosie", "Nina", "Clara", "Lucy"),
    *("Maya", "Ivy", "Nora", "Amy", "Tara", "Molly", "Hana", "Lena", "Sara", "Bea", "Ada"),
)
BOYS = (
    *("Tom", "Ben", "Max", "Sam", "Tim", "Leo", "Jack", "Finn", "Noah", "Omar", "Eli"),
    *("Theo", "Hugo", "Oscar", "Peter", "Luke", "Ravi", "Kai", "Danny", "Milo", "Adam"),
)
HER_ANIMAL_NAMES = (
    *("Misty", "Pearl", "Hazel", "Olive", "Honey", "Dot", "Willow", "Pebble", "Juniper"),
    *("Coco", "Maple", "Clover"),
)
HIS_ANIMAL_NAMES = (
    *("Bruno", "Patch", "Pip", "Rusty", "Biscuit", "Barney", "Otto", "Monty", "Nibble"),
    *("Acorn", "Digby", "Bramble"),
)
WOMEN = ("Mom", "Mom", "Mom", "Grandma", "Grandma", "Aunt May", "Aunt Rose")
MEN = ("Dad", "Dad", "Dad", "Grandpa", "Grandpa", "Uncle Joe", "Uncle Bill")
NEIGHBORS_HER = ("Miss Green", "Miss Bell", "Miss Hill", "Granny Fern", "Miss Wren")
NEIGHBORS_HIS = ("Farmer Brown", "Captain Reed", "Baker Paul", "Old Walter", "Farmer Hank")
FOREST_ANIMALS = (
    *("fox", "rabbit", "squirrel", "hedgehog", "mouse", "badger", "bear", "otter"),
    *("beaver", "mole", "raccoon", "chipmunk"),
)
WISE_ANIMALS = ("the old owl", "the wise turtle", "the gray goose", "the old toad")

TRAITS = (
    *("little", "little", "little", "cheerful", "curious", "playful", "clever", "happy"),
    *("young", "lively", "friendly", "small", "busy", "bright", "gentle", "funny"),
)
COLORS = (
    *("red", "blue", "green", "yellow", "orange", "purple", "pink", "white", "golden"),
    *("silver", "brown", "striped", "spotted"),
)
TOYS = (
    *("ball", "kite", "toy boat", "teddy bear", "toy train", "doll", "drum", "toy car"),
    *("wooden horse", "bucket", "hat", "scarf", "toy duck", "yo-yo"),
)
TREATS = (
    *("warm cookies", "apple pie", "banana bread", "berry tart", "sweet plums", "lemon cake"),
    *("honey bread", "pumpkin bread", "cherry pie", "soft pancakes", "ginger biscuits"),
)
DAYS = ("one {} {}", "one {} {}", "one {1}", "on a {} {}", "one {} {}")
WEATHER = ("sunny", "windy", "cloudy", "warm", "bright", "cool", "quiet", "clear", "lovely")
HOURS = ("morning", "morning", "afternoon", "day", "Saturday", "Sunday", "spring morning")

CHILD_HOMES = (
    *("in a small house by the river", "at the edge of a quiet village", "near the sea"),
    *("on a farm with a red barn", "in a tall house on a busy street", "next to a bakery"),
    *(
        "on top of a green hill",
        "in a yellow house with a round door",
        "beside a train station",
    ),
)
ANIMAL_HOMES = (
    *("under the roots of an old oak tree", "in a cozy den by the stream", "in a hollow log"),
    *("at the edge of a deep forest", "on the sunny side of the hill", "beside a quiet pond"),
)
HOBBIES = (
    Hobby("sing silly songs", "sang a silly song about it all"),
    Hobby("draw pictures", "drew a picture of the whole day"),
    Hobby("tell jokes", "told a funny joke about it"),
    Hobby("dance", "danced around the room for joy"),
    Hobby("count the stars", "counted the stars, one by one"),
    Hobby("listen to stories", "listened to a story, but this day had been even better"),
    Hobby("collect smooth stones", "picked out a smooth stone to remember the day"),
    Hobby("make up poems", "made up a little poem about the day"),
    Hobby("play the flute", "played a merry tune on the flute"),
)
WILD_PLACES = (
    Place("the park", "in the park", ("under the bench", "behind the slide", "by the pond")),
    Place("the woods", "in the woods", ("under a bush", "behind a log", "near the oak tree")),
    Place("the garden", "in the garden", ("under the roses", "behind the shed", "by the wall")),
    Place("the meadow", "in the meadow", ("in the grass", "by the fence", "near the creek")),
    Place("the lake", "at the lake", ("under a boat", "in the reeds", "behind a willow tree")),
    Place("the orchard", "in the orchard", ("under a ladder", "behind a pear tree", "by a cart")),
)
PLACES = (
    *WILD_PLACES,
    Place("the beach", "at the beach", ("behind a big rock", "near the boats", "in the dunes")),
    Place("the farm", "at the farm", ("in the barn", "behind the haystack", "by the gate")),
    Place("the market", "at the market", ("under a cart", "by the well", "near the fish stall")),
    Place("the zoo", "at the zoo", ("near the monkeys", "by the snack stand", "under a bench")),
)

type Ways = tuple[tuple[str, str], ...]

_ASKED: Ways = (("asked", ""), ("asked", ""), ("asked", ""), ("wanted to know", ""))
_CRIED: Ways = (("cried", ""), ("called", ""), ("shouted", ""), ("said", " loudly"))
SPEECH: dict[str, dict[str, Ways]] = {
    "plain": {
        ".": (("said", ""), ("said", ""), ("said", ""), ("said", " quietly")),
        "!": (*_CRIED, ("said", "")),
        "?": _ASKED,
    },
    "answer": {
        ".": (("answered", ""), ("replied", ""), ("said", "")),
        "!": (("answered", ""), ("replied", ""), ("said", ""), ("said", " at once")),
        "?": _ASKED,
    },
    "happy": {
        ".": (("said", " happily"), ("said", " with a smile"), ("laughed", ""), ("said", "")),
        "!": (
            ("cheered", ""),
            ("cried", " happily"),
            ("shouted", " with joy"),
            ("laughed", ""),
        ),
        "?": (("asked", " with a grin"), ("asked", " happily"), ("asked", "")),
    },
    "sad": {
        ".": (
            ("said", " sadly"),
            ("sobbed", ""),
            ("sighed", ""),
            ("said", " in a small voice"),
        ),
        "!": (("cried", ""), ("sobbed", ""), ("wailed", ""), ("cried", " sadly")),
        "?": (("asked", " sadly"), ("asked", " in a small voice"), ("sobbed", "")),
    },
    "kind": {
        ".": (("said", " gently"), ("said", " kindly"), ("said", " softly"), ("said", "")),
        "!": (("said", " kindly"), ("said", " warmly"), ("said", " softly")),
        "?": (("asked", " gently"), ("asked", " kindly"), ("asked", "")),
    },
    "cross": {
        ".": (("grumbled", ""), ("snapped", ""), ("said", " crossly"), ("huffed", "")),
        "!": (("shouted", ""), ("yelled", ""), ("snapped", ""), ("said", " crossly")),
        "?": (("snapped", ""), ("asked", " crossly"), ("grumbled", "")),
    },
    "shy": {
        ".": (("whispered", ""), ("mumbled", ""), ("said", " quietly"), ("said", " shyly")),
        "!": (("whispered", ""), ("said", " shyly"), ("said", " softly")),
        "?": (("whispered", ""), ("asked", " shyly"), ("asked", " quietly")),
    },
}
