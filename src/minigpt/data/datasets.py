"""Public text corpora that MiniGPT knows by name."""

import difflib
from dataclasses import dataclass

from minigpt.errors import DataError

HUB = "https://huggingface.co"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A public corpus: the ``files`` below ``base_url``, which ends with a slash."""

    name: str
    base_url: str
    files: tuple[str, ...]
    description: str


DATASETS = {
    name: Dataset(
        name=name,
        base_url=f"{HUB}/datasets/roneneldan/TinyStories/resolve/main/",
        files=(f"{prefix}-train.txt", f"{prefix}-valid.txt"),
        description=f"TinyStories: short stories written by {authors}",
    )
    for name, prefix, authors in (
        ("tinystories", "TinyStoriesV2-GPT4", "GPT-4 (version 2)"),
        ("tinystories-v1", "TinyStories", "GPT-3.5 and GPT-4 (version 1)"),
    )
}


def dataset(name: str) -> Dataset:
    """Looks up a corpus.

    Raises:
        DataError: there is no corpus of that name; the message offers the nearest.
    """
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name.lower(), DATASETS, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise DataError(f"No dataset is called {name!r}. {hint}Known: {', '.join(DATASETS)}.")
