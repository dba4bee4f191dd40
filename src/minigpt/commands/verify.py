"""``minigpt verify``."""

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from minigpt.config import Config, ParallelConfig
from minigpt.config_rules import at_least, fraction, nearest_divisor, require
from minigpt.errors import MiniGPTError

if TYPE_CHECKING:
    from minigpt.verify import Evidence, Verdict


@dataclass(frozen=True, kw_only=True)
class VerifyArguments:
    """Train a small model on one device and on a mesh and compare; exit 1 where they differ."""

    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    all: bool = False
    """Every mesh and schedule of --devices devices, instead of the one given."""
    devices: int = 8
    """Devices of the meshes of --all; on a CPU they are virtual."""
    processes: int = 1
    """Spread the devices over this many processes of this machine (CPU only)."""
    steps: int = 20
    """Training steps to compare."""
    dropout: float = 0.1
    """Dropout of the small model; 0: none."""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        at_least(self, "verify", 1, "devices", "processes", "steps")
        fraction(self, "verify", "dropout")


def run(arguments: list[str]) -> None:
    """Verify one mesh or all of them and print what was found."""
    options = tyro.cli(VerifyArguments, prog="minigpt verify", args=arguments)
    from minigpt.launch.processes import run_in_processes
    from minigpt.train.console import make_console
    from minigpt.verify import describe, prepare, train

    meshes = _meshes(options)
    num_devices = max(mesh.pipe * mesh.data * mesh.model for mesh in meshes)
    require(
        num_devices % options.processes == 0,
        f"--processes must divide the number of devices: {num_devices} is not divisible by "
        f"{options.processes}; the nearest that works is "
        f"{nearest_divisor(num_devices, options.processes)}",
    )
    with tempfile.TemporaryDirectory() as name:
        config = prepare(meshes, Path(name), steps=options.steps, dropout=options.dropout)
        comparison = Comparison(config, meshes, train(config), in_lines=options.all)
        if options.processes == 1:
            verdicts = comparison.run()
        else:
            verdicts = run_in_processes(
                comparison.run,
                num_processes=options.processes,
                devices_per_process=num_devices // options.processes,
            )[0]
    differing = [describe(verdict.parallel) for verdict in verdicts if not verdict.ok]
    if differing:
        raise MiniGPTError(
            f"{len(differing)} mesh(es) train something else: {'; '.join(differing)}"
        )
    make_console().print(f"{len(verdicts)} mesh(es) train what one device trains")


def _meshes(options: VerifyArguments) -> list[ParallelConfig]:
    """The meshes to verify, ``data`` resolved; makes the virtual devices of this process."""
    import jax

    from minigpt.parallel.mesh import mesh_shape, use_virtual_devices
    from minigpt.verify import all_meshes

    if options.all:
        use_virtual_devices(ParallelConfig(data=options.devices))
        return list(all_meshes(options.devices, options.parallel.microbatches))
    if options.processes > 1:
        return [replace(options.parallel, data=max(1, options.parallel.data))]
    use_virtual_devices(options.parallel)
    pipe, data, model = mesh_shape(options.parallel, jax.device_count())
    return [replace(options.parallel, pipe=pipe, data=data, model=model)]


@dataclass(frozen=True)
class Comparison:
    """Meshes to compare with one device; the first process of the runtime prints."""

    config: Config
    meshes: list[ParallelConfig]
    expected: "Evidence"
    in_lines: bool
    """A line for each mesh, instead of a table."""

    def run(self) -> "list[Verdict]":
        """Verify, in one process of the runtime."""
        from minigpt.verify import verify

        return verify(self.config, self.meshes, self.expected, notify=self._show)

    def _show(self, verdict: "Verdict") -> None:
        import jax

        from minigpt.train.console import make_console
        from minigpt.verify import describe, table

        if jax.process_index() > 0:
            return
        if not self.in_lines:
            make_console().print(table(verdict))
            return
        worst = verdict.differences
        make_console().print(
            f"{'equal  ' if verdict.ok else 'DIFFERS'}  {describe(verdict.parallel):<54}"
            f"loss {worst['loss of each step, relative']:.1e}  "
            f"parameters {worst['final parameters']:.1e}"
        )
