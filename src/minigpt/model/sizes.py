"""Sizes that the model chooses, in plain Python: whoever plans a run needs them without jax."""

VOCAB_MULTIPLE = 128
MAX_CHUNK = 2560
BLOCK = 128
"""Queries that attention takes at once."""


def padded_vocabulary(vocab_size: int) -> int:
    """Rows of the embedding: the vocabulary rounded up to a multiple that divides well."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def chunk_size(vocab: int) -> int:
    """The largest divisor of ``vocab`` that is at most ``MAX_CHUNK``."""
    return next(size for size in range(min(vocab, MAX_CHUNK), 0, -1) if vocab % size == 0)
