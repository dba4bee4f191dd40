"""Training batches through Grain: read ahead by threads, in the order of ``data.order``."""

from collections.abc import Iterator

import grain

from minigpt.data.batches import Batch, BatchReader


class GrainSource:
    """Batches of consecutive steps, prefetched by Grain's reader threads.

    Grain sees step numbers and maps each to its batch, so the rows of a step do not depend on
    it, and to continue at a step is to start the range there.
    """

    def __init__(self, reader: BatchReader, *, num_threads: int = 1, buffer_size: int = 4) -> None:
        """Read through ``reader``, at most ``buffer_size`` batches ahead."""
        self._reader = reader
        self._options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=buffer_size)

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """The batches of steps ``start`` to ``stop - 1``."""
        steps = grain.MapDataset.range(start, stop)
        return iter(steps.map(self._reader.read).to_iter_dataset(self._options))
