"""Options of the commands that do not take a training configuration."""

from dataclasses import dataclass, field
from pathlib import Path

from tyro.conf import Positional

from minigpt.config import ParallelConfig
from minigpt.config_rules import at_least, fraction


@dataclass(frozen=True, kw_only=True)
class SampleArguments:
    """Generate text from the newest checkpoint of a run."""

    run: Positional[Path]
    """The run directory, for example runs/mini."""
    prompt: tuple[str, ...] = ("",)
    """One or more texts to continue; an empty one starts a new story."""
    max_tokens: int = 200
    """New tokens for each prompt; a story may end sooner."""
    temperature: float = 0.8
    """Divides the logits; 0: always the most likely token."""
    top_k: int = 0
    """Choose among this many most likely tokens; 0: all."""
    top_p: float = 1.0
    """Choose among the most likely tokens that together have this probability."""
    seed: int = 0
    """The same seed, prompts and settings give the same text."""
    json: bool = False
    """Print one JSON object for each prompt instead of text."""


@dataclass(frozen=True, kw_only=True)
class FetchArguments:
    """Download a public corpus; an interrupted download continues."""

    name: Positional[str]
    """tinystories (version 2, by GPT-4) or tinystories-v1."""
    directory: Path = Path("datasets")
    """Folder to put the files in."""


@dataclass(frozen=True, kw_only=True)
class VerifyArguments:
    """Train a small model on one device and on a mesh and compare; exit 1 where they differ."""

    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    all: bool = False
    """Every mesh and schedule of --devices devices, instead of the one given."""
    devices: int = 8
    """Devices of the meshes of --all; on a CPU they are virtual."""
    steps: int = 20
    """Training steps to compare."""
    dropout: float = 0.1
    """Dropout of the small model; 0: none."""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        at_least(self, "verify", 1, "devices", "steps")
        fraction(self, "verify", "dropout")
