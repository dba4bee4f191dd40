"""The device mesh: axes ``("pipe", "data", "model")``, outermost first.

``model`` is innermost, so that tensor-parallel peers, which talk most, are neighbours.
"""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from minigpt.config import ParallelConfig
from minigpt.errors import ConfigError

AXES = ("pipe", "data", "model")
VOCAB_AXES = ("pipe", "model")
"""Every stage and every tensor-parallel peer holds its share of the vocabulary."""


def use_virtual_devices(parallel: ParallelConfig) -> None:
    """On CPU, make as many virtual devices as the mesh needs; before jax looks for devices."""
    needed = parallel.pipe * parallel.model * max(1, parallel.data)
    if jax.config.jax_num_cpu_devices == -1 and needed > 1:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_num_cpu_devices", needed)


def mesh_shape(parallel: ParallelConfig, num_devices: int) -> tuple[int, int, int]:
    """(pipe, data, model) with ``data`` of -1 resolved to what is left.

    Raises:
        ConfigError: there are too few devices, or what is left does not divide.
    """
    pipe, data, model = parallel.pipe, parallel.data, parallel.model
    if data == -1:
        if num_devices % (pipe * model) == 0:
            return pipe, num_devices // (pipe * model), model
        groups = num_devices // (pipe * model)
        remedy = (
            f"use parallel.data {groups} for {groups * pipe * model} of them"
            if groups
            else f"{pipe * model} devices are the least"
        )
        raise ConfigError(
            f"parallel.pipe x parallel.model must divide the number of devices where "
            f"parallel.data is -1: {pipe} x {model} with {num_devices} device(s); {remedy}"
        )
    if pipe * data * model > num_devices:
        raise ConfigError(
            f"parallel.pipe x parallel.data x parallel.model must not exceed the number of "
            f"devices: {pipe} x {data} x {model} = {pipe * data * model} with {num_devices} "
            f"device(s); use parallel.data {max(1, num_devices // (pipe * model))}"
        )
    return pipe, data, model


def make_mesh(shape: tuple[int, int, int]) -> Mesh:
    """A mesh of the first devices (all processes' devices, in process order)."""
    chosen = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=chosen)


def picture(mesh: Mesh, *, num_layers: int, interleave: int, batch_size: int) -> str:
    """Which device holds which layers, rows and slice, as text.

    With several processes a device is ``process:number in it``.
    """
    pipe, data, model = mesh.devices.shape
    per_chunk = num_layers // (pipe * interleave)
    names = dict(zip(mesh.devices.flat, device_names(mesh), strict=True))
    lines = [f"mesh: {pipe} pipe x {data} data x {model} model"]
    for stage in range(pipe):
        firsts = [(chunk * pipe + stage) * per_chunk for chunk in range(interleave)]
        layers = ", ".join(
            f"{first}-{first + per_chunk - 1}" if per_chunk > 1 else f"{first}" for first in firsts
        )
        lines.append(f"  stage {stage}: layers {layers}")
        for row in range(data):
            rows = f"rows {row * batch_size // data}-{(row + 1) * batch_size // data - 1}"
            devices = "  ".join(
                f"[{names[mesh.devices[stage, row, peer]]}] slice {peer + 1}/{model}"
                for peer in range(model)
            )
            lines.append(f"    {rows}: {devices}")
    return "\n".join(lines)


def device_names(mesh: Mesh) -> list[str]:
    """Of the devices in the order of the mesh; with several processes ``process:number in it``."""
    processes = [device.process_index for device in mesh.devices.flat]
    if len(set(processes)) == 1:
        return [str(device.id) for device in mesh.devices.flat]
    return [
        f"{process}:{processes[:place].count(process)}" for place, process in enumerate(processes)
    ]
