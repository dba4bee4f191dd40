"""What ``metrics.jsonl`` holds."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of ``metrics.jsonl``. Train records carry all fields, val records fewer."""

    step: int
    """Steps done."""
    split: Literal["train", "val"]
    loss: float
    """Mean cross-entropy over the valid targets, in nats: of this step's global batch, or of all
    validation rows."""
    learning_rate: float | None = None
    grad_norm: float | None = None
    """Norm of the whole gradient before clipping."""
    tokens: int | None = None
    """Valid targets trained on since the start of the run."""
    tokens_per_second: float | None = None
    mfu: float | None = None
    """Model FLOP/s over the peak of the devices; None where no peak is known."""
    step_seconds: float | None = None
    """Mean time of a step since the last record; evaluation, samples and saving left out."""
    data_seconds: float | None = None
    """Mean time a step waited for its batch."""
    elapsed_seconds: float | None = None
    """Time in the training loop, over all restarts."""
