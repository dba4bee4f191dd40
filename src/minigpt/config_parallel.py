"""How the work is spread over devices and machines: groups of a configuration."""

from dataclasses import dataclass
from typing import Literal

from minigpt.config_rules import at_least, require


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """How the model and the work of one step are cut up over devices."""

    pipe: int = 1
    """Pipeline stages: groups of devices that each hold some of the layers."""
    data: int = -1
    """Groups of devices that each see their share of the batch; -1: what is left."""
    model: int = 1
    """Devices that split every layer: heads, hidden units and vocabulary."""
    sequence: bool = False
    """Divide the sequence too between the devices of model, outside of attention and MLP: less
    memory for activations."""
    microbatches: int = 1
    """Pieces of the global batch whose gradients are added up; divides global_batch_size."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """1f1b: a microbatch goes backward as soon as it is through; gpipe: when all are."""
    interleave: int = 1
    """Chunks of layers of each pipeline stage: more chunks, smaller bubble, more traffic."""
    zero: Literal[0, 1] = 0
    """1: split the optimizer's moments over the data groups."""
    remat: Literal["none", "layer"] = "none"
    """layer: keep only the input of each block and compute the rest again going backward."""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        at_least(self, "parallel", 1, "pipe", "model", "microbatches", "interleave")
        require(
            self.data == -1 or self.data >= 1,
            f"parallel.data must be at least 1, or -1 for what is left, got {self.data}",
        )
        require(
            self.pipe > 1 or self.interleave == 1,
            f"parallel.interleave needs pipeline stages: it is {self.interleave} with "
            f"parallel.pipe {self.pipe}; use parallel.interleave 1, or parallel.pipe 2 or more",
        )
        require(
            self.model > 1 or not self.sequence,
            f"parallel.sequence needs tensor-parallel devices: it is {self.sequence} with "
            f"parallel.model {self.model}; leave it out, or use parallel.model 2 or more",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """Training on many machines, through Ray."""

    num_workers: int = 0
    """Processes that train, one on each node if it is large enough; 0: this process alone."""
    devices_per_worker: int = 1
    """Devices of each worker; on a CPU they are virtual."""
    platform: Literal["cpu", "cuda", "tpu"] = "cpu"
    """What the devices are; nothing else is fallen back to."""
    address: str | None = None
    """Address of a running Ray cluster, or auto; none: a small one is started on this machine."""
    storage_path: str | None = None
    """Folder that all nodes share: tokens are kept in it, and run.directory is below it if it is
    relative; none: run.directory."""
    max_failures: int = 3
    """Restarts from the last checkpoint after a worker or a node is lost, before giving up."""
    hang_seconds: float = 900.0
    """Time without any progress after which a worker ends itself, so that the group restarts;
    longer than compiling takes. 0: none."""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        at_least(self, "cluster", 0, "num_workers", "max_failures", "hang_seconds")
        at_least(self, "cluster", 1, "devices_per_worker")
        require(
            self.num_workers > 0 or self.address is None,
            f"cluster.address is {self.address!r}, but cluster.num_workers is 0, which trains "
            "without Ray; set cluster.num_workers to the number of nodes",
        )
