"""``minigpt`` with a worker that raises; its functions are sent to the workers by value."""

import sys

from minigpt.cli import main
from minigpt.launch import ray as through_ray


def train_worker(task):
    """Raise at step 6 in the second worker, when a save has not yet been reported."""
    import jax

    from minigpt.launch import ray_worker

    class Raising(ray_worker.RaySource):
        def batches(self, start, stop):
            for step, batch in enumerate(super().batches(start, stop), start):
                if step == 6 and jax.process_index() == 1:
                    raise ZeroDivisionError("a bug at step 6")
                yield batch

    ray_worker.RaySource = Raising
    return ray_worker.train_worker(task)


if __name__ == "__main__":
    through_ray.train_worker = train_worker
    sys.exit(main(sys.argv[1:]))
