"""Things that belong together in a plot, such as an accident and the way to repair it."""

from typing import NamedTuple


class Fear(NamedTuple):
    """Something in the night: how it is noticed, what it might be, and what it is."""

    sense: str
    what: str
    where: str
    guess: str
    truth: str


class Mess(NamedTuple):
    """An accident at home."""

    deed: str
    accident: str
    thing: str
    hide: str
    confess: str
    fix: str


class Task(NamedTuple):
    """Work that is too hard for an old neighbor."""

    seen: str
    trouble: str
    work: str
    done: str


class Project(NamedTuple):
    """Something that friends build, that goes wrong, and that they build better."""

    what: str
    where: str
    start: str
    ruin: str
    better: str
    done: str


class Skill(NamedTuple):
    """Something to learn: it fails first, and then a tip helps."""

    do: str
    doing: str
    fail: str
    tip: str
    win: str


class Plant(NamedTuple):
    """A seed and what becomes of it."""

    seed: str
    sprout: str
    grown: str
    use: str


class Patient(NamedTuple):
    """A hurt wild animal, how to care for it, and how it goes back."""

    kind: str
    hurt: str
    care: str
    food: str
    leave: str


class Baby(NamedTuple):
    """A young animal, its mother, and the sound that she makes."""

    kind: str
    mother: str
    sound: str
    home: str


class Hoard(NamedTuple):
    """Food that a greedy animal keeps, and how it is lost."""

    kind: str
    food: str
    store: str
    loss: str


FEARS = (
    Fear("heard", "a tapping sound", "at the window", "a monster",
         "a branch of the apple tree, moving in the wind"),
    Fear("heard", "a scratching sound", "at the back door", "a wolf",
         "a hungry gray kitten that wanted to come in"),
    Fear("heard", "a flapping sound", "outside", "a giant bat",
         "a wet sheet on the washing line"),
    Fear("saw", "a tall shadow", "in the corner", "a robber", "an old coat on a hook"),
    Fear("saw", "two shining eyes", "under the chair", "a dragon", "the cat, who was awake"),
    Fear("heard", "a low humming sound", "in the kitchen", "a ghost", "the old refrigerator"),
    Fear("heard", "a creaking sound", "on the stairs", "a troll",
         "the old dog, who was looking for a warm place to sleep"),
    Fear("saw", "a pale light", "in the hall", "a ghost", "the moon, shining in a mirror"),
)  # fmt: skip
MESSES = (
    Mess("bounced a ball in the living room",
         "the ball hit the tall blue vase, and it fell to the floor with a crash", "my vase",
         "pushed the pieces under the sofa", "I broke the vase with my ball",
         "glued the pieces of the vase back together"),
    Mess("painted a picture on the new rug", "the jar fell over, and purple paint ran out",
         "the rug", "pulled a chair over the purple spot", "I spilled the paint on the rug",
         "scrubbed the rug until the purple spot was almost gone"),
    Mess("ran through the kitchen in muddy boots",
         "there was brown mud all over the clean white floor", "my clean floor",
         "hid the boots behind the door", "I walked on the floor in my muddy boots",
         "mopped the floor until it was white again"),
    Mess("climbed on a chair to reach the cookie jar",
         "the jar slipped, and cookies flew everywhere", "the cookie jar",
         "swept the crumbs into a corner", "I dropped the cookie jar",
         "cleaned up the crumbs and baked new cookies"),
    Mess("played catch in the garden", "the ball landed on the best tomato plant and broke it",
         "my tomato plant", "covered the plant with leaves", "I broke the tomato plant",
         "tied the plant to a stick so that it could grow again"),
    Mess("looked at the big picture book with sticky fingers", "a page tore right in half",
         "the picture book", "put the book at the back of the shelf", "I tore the page",
         "mended the page with tape"),
)  # fmt: skip
TASKS = (
    Task("was looking at a garden full of fallen leaves", "So many leaves, and my back hurts.",
         "took the rake and made one big pile after another",
         "there was not a single leaf on the grass"),
    Task("was carrying two heavy bags up the hill", "These bags are too heavy for me.",
         "took the bags and carried them up the hill", "both bags stood safely in the kitchen"),
    Task("was standing under a tree full of ripe apples", "I cannot reach my apples anymore.",
         "climbed the tree and picked one apple after another",
         "three baskets were full of red apples"),
    Task("was searching the grass by the gate", "I have lost my house key.",
         "crawled through the grass and looked under every leaf",
         "the little key lay shining in the grass, and the door was open again"),
    Task("was pushing a cart with a broken wheel", "The wheel came off, and the cart won't go.",
         "lifted the cart and pushed the wheel back in its place", "the cart rolled again"),
    Task("was looking at the garden fence and its peeling paint", "My poor fence looks so sad.",
         "took a brush and painted one board after another", "the fence was as white as snow"),
)  # fmt: skip
PROJECTS = (
    Project("a sandcastle", "at the beach", "filled their buckets with wet sand",
            "a big wave came and washed the walls away", "build it farther from the water",
            "it had four towers and a shell on top of each one"),
    Project("a tree house", "in the old oak tree", "carried boards and rope up the tree",
            "a board came loose, and half of the floor fell down",
            "tie every board with two knots", "it had a floor, a roof, and a tiny window"),
    Project("a raft", "by the river", "gathered branches and laid them side by side",
            "the raft came apart as soon as it touched the water",
            "tie the branches together with strong rope",
            "it floated, and they rode it all the way across"),
    Project("a bridge", "over the little stream", "put a long branch across the water",
            "the branch cracked and fell into the stream", "use flat stones at the bottom",
            "they could walk across without getting one toe wet"),
    Project("a snow fort", "on the hill behind the school", "rolled big balls of snow",
            "one wall tipped over with a soft thump", "make the bottom wider than the top",
            "it was taller than both of them"),
    Project("a big kite", "in the yard", "cut paper and thin sticks",
            "it spun around and crashed to the ground", "give it a longer tail",
            "it flew higher than the trees"),
)  # fmt: skip
SKILLS = (
    Skill("ride a bike", "riding a bike", "the bike wobbled and tipped over",
          "Look ahead, and not at your feet.", "rode all the way down the lane"),
    Skill("whistle", "whistling", "only a puff of air came out",
          "Make a small, round mouth and blow softly.", "whistled a whole song"),
    Skill("swim", "swimming", "there was only a lot of splashing",
          "Kick slowly, and let the water carry you.", "swam from one side to the other"),
    Skill("skate", "skating", "both feet slid away at once",
          "Bend your knees and lean forward a little.", "skated around the whole pond"),
    Skill("jump rope", "jumping rope", "the rope got tangled again",
          "Listen to the rope, and jump when it taps the ground.",
          "jumped twenty times without a stop"),
    Skill("juggle", "juggling", "all the balls rolled across the floor",
          "Start with one ball, then use two.", "kept three balls in the air"),
    Skill("bake bread", "baking bread", "the bread was as flat and hard as a plate",
          "Let the dough rest, so that it can rise.", "took a big golden loaf out of the oven"),
)  # fmt: skip
PLANTS = (
    Plant("sunflower seed", "a tiny green tip", "a sunflower, taller than the fence",
          "gave the new seeds to the birds"),
    Plant("pumpkin seed", "two round leaves", "a pumpkin as big as a stool",
          "made a big pot of pumpkin soup"),
    Plant("bean", "a curly green stem", "a bean plant that climbed up to the roof",
          "picked a whole basket of beans for dinner"),
    Plant("strawberry seed", "one little leaf", "a bush full of sweet red strawberries",
          "ate the berries with cream"),
    Plant("tomato seed", "a thin green stem", "a plant full of round red tomatoes",
          "had the best tomato salad of the year"),
    Plant("carrot seed", "a few feathery leaves", "a carrot as long as an arm",
          "shared the crunchy carrot at lunch"),
)  # fmt: skip
PATIENTS = (
    Patient("bird", "Its wing was hurt.", "wrapped the wing in a soft cloth", "seeds and water",
            "flew up into the sky and sang"),
    Patient("hedgehog", "There was a thorn in its paw.", "pulled out the thorn very carefully",
            "bits of apple", "trotted off without a sound"),
    Patient("duckling", "A string was tangled around its foot.",
            "cut the string away", "soft bread and peas", "waddled off with a quack"),
    Patient("rabbit", "Its back leg was sore.", "made a warm bed out of straw",
            "clover and carrots", "hopped away in the sun"),
    Patient("squirrel", "Its paw was swollen.", "washed the paw with clean water",
            "nuts and berries", "ran off with its tail in the air"),
    Patient("turtle", "There was a crack in its shell.", "put a clean bandage on the shell",
            "lettuce leaves", "walked off, slow and steady"),
)  # fmt: skip
BABIES = (
    Baby("duckling", "the duck", "quack", "by the pond"),
    Baby("lamb", "the sheep", "baa", "on the hill"),
    Baby("calf", "the cow", "moo", "in the big field"),
    Baby("piglet", "the pig", "oink", "by the mud bath"),
    Baby("chick", "the hen", "cluck", "in the hen house"),
    Baby("puppy", "the dog", "woof", "beside the barn"),
    Baby("kitten", "the cat", "meow", "in the hay"),
    Baby("foal", "the horse", "neigh", "in the stable"),
)
HOARDS = (
    Hoard("squirrel", "nuts", "a hollow tree", "the wind blew the old tree over, and the nuts "
          "rolled into the river"),
    Hoard("mouse", "grain", "a hole under the barn",
          "rain ran into the hole, and all the grain was spoiled"),
    Hoard("bear", "honey", "a cave", "a long line of ants came and took all the honey"),
    Hoard("hamster", "carrots", "a deep tunnel", "the tunnel was so full that it fell in"),
    Hoard("badger", "berries", "a wooden box",
          "one berry went bad, and soon all the others were spoiled, too"),
)  # fmt: skip
