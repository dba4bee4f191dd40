"""MiniGPT's built-in corpus: short children's stories made from a seed.

Story `index` of seed `seed` is always the same text, whatever else was generated before it.
"""

from collections.abc import Iterator
from random import Random

from minigpt.data.stories.plots_animals import ANIMAL_PLOTS
from minigpt.data.stories.plots_care import CARE_PLOTS
from minigpt.data.stories.plots_friends import FRIEND_PLOTS
from minigpt.data.stories.plots_home import HOME_PLOTS
from minigpt.data.stories.plots_outdoors import OUTDOOR_PLOTS
from minigpt.data.stories.teller import Teller

__all__ = ["DELIMITER", "PLOTS", "corpus", "story"]

DELIMITER = "<|endoftext|>"
PLOTS = (*HOME_PLOTS, *FRIEND_PLOTS, *OUTDOOR_PLOTS, *CARE_PLOTS, *ANIMAL_PLOTS)


def story(seed: int, index: int) -> str:
    """Returns the index-th story of the seed's corpus, without the delimiter."""
    # A string seed is hashed with SHA-512, so it means the same on every Python version.
    teller = Teller(Random(f"{seed}/{index}"))
    plot = teller.pick(PLOTS)
    plot(teller)
    return teller.text()


def corpus(seed: int, count: int) -> Iterator[str]:
    """Yields the first count stories, each followed by a line that holds the delimiter."""
    for index in range(count):
        yield f"{story(seed, index)}\n{DELIMITER}\n"
