"""Which row stands where: a keyed permutation computed by index.

Position ``p`` of a run (row ``r`` of global batch ``s`` has ``p = s * batch_size + r``) holds row
``permutation(seed, epoch)[p % num_rows]`` with ``epoch = p // num_rows``. Nothing is shuffled in
memory and nothing is remembered: any step can be asked for at any time, on any machine, and gives
the same rows.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6


def rows_at(
    positions: NDArray[np.int64], num_rows: int, *, seed: int, shuffle: bool
) -> NDArray[np.int64]:
    """Row numbers at positions of the run, shape as ``positions``.

    Args:
        positions: global positions, counted over all epochs from 0.
        num_rows: rows of one epoch; each occurs once in every epoch.
        seed: ``train.seed``.
        shuffle: False gives the rows in their stored order in every epoch.
    """
    epochs, offsets = np.divmod(np.asarray(positions, np.int64), num_rows)
    if not shuffle:
        return offsets
    rows = np.empty_like(offsets)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        rows[here] = permute(offsets[here], num_rows, key=f"{seed}/{epoch}")
    return rows


def permute(indices: NDArray[np.int64], size: int, *, key: str) -> NDArray[np.int64]:
    """``permutation[indices]`` for the permutation of ``range(size)`` that ``key`` names.

    A Feistel network permutes the next larger domain of ``2 ** (2 * half_bits)`` numbers; those
    that fall outside ``range(size)`` walk on until they are inside, which keeps it a permutation
    (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", cycle walking).
    """
    half_bits = max(1, (int(size - 1).bit_length() + 1) // 2)
    digest = hashlib.shake_256(key.encode()).digest(8 * _ROUNDS)
    round_keys = np.frombuffer(digest, "<u8")
    values = np.asarray(indices).astype(np.uint64)
    outside = np.ones(values.shape, bool)
    while outside.any():
        values[outside] = _feistel(values[outside], half_bits, round_keys)
        outside = values >= size
    return values.astype(np.int64)


def _feistel(
    values: NDArray[np.uint64], half_bits: int, round_keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    mask = np.uint64((1 << half_bits) - 1)
    left, right = values >> np.uint64(half_bits), values & mask
    for round_key in round_keys:
        left, right = right, left ^ (_mix(right ^ round_key) & mask)
    return (left << np.uint64(half_bits)) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit depends on all."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
