"""``minigpt verify``."""

from dataclasses import dataclass, field, replace

import tyro

from minigpt.config import ParallelConfig
from minigpt.config_rules import at_least, fraction
from minigpt.errors import MiniGPTError


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


def run(arguments: list[str]) -> None:
    """Verify one mesh or all of them and print what was found."""
    options = tyro.cli(VerifyArguments, prog="minigpt verify", args=arguments)
    import jax

    from minigpt.parallel.mesh import mesh_shape, use_virtual_devices
    from minigpt.train.console import make_console
    from minigpt.verify import Verdict, all_meshes, describe, table, verify

    console = make_console()
    use_virtual_devices(replace(options.parallel, data=options.devices) if options.all
                        else options.parallel)  # fmt: skip
    if options.all:
        meshes = list(all_meshes(options.devices, options.parallel.microbatches))
    else:
        pipe, data, model = mesh_shape(options.parallel, jax.device_count())
        meshes = [replace(options.parallel, pipe=pipe, data=data, model=model)]

    def show(verdict: Verdict) -> None:
        if not options.all:
            console.print(table(verdict))
            return
        worst = verdict.differences
        console.print(
            f"{'equal  ' if verdict.ok else 'DIFFERS'}  {describe(verdict.parallel):<54}"
            f"loss {worst['loss of each step, relative']:.1e}  "
            f"parameters {worst['final parameters']:.1e}"
        )

    verdicts = verify(meshes, steps=options.steps, dropout=options.dropout, notify=show)
    differing = [describe(verdict.parallel) for verdict in verdicts if not verdict.ok]
    if differing:
        raise MiniGPTError(
            f"{len(differing)} mesh(es) train something else: {'; '.join(differing)}"
        )
    console.print(f"{len(verdicts)} mesh(es) train what one device trains")
