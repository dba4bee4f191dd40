"""Examines this machine, in this process."""

import secrets
import socket
from dataclasses import replace
from pathlib import Path

import jax

from minigpt.config import Config
from minigpt.doctor.facts import Findings, StorageFacts, device_facts, node_facts
from minigpt.doctor.links import measure_links
from minigpt.doctor.probes import left_as_found, read_probe, remove_probe, write_probe
from minigpt.errors import ConfigError
from minigpt.launch.training import resolve_mesh
from minigpt.parallel.mesh import make_mesh, use_virtual_devices
from minigpt.train.checkpoint import root_cause


def examine(config: Config) -> Findings:
    """Find out what training in this process would meet."""
    here = node_facts("this process", socket.gethostname())
    storage = _storage(Path(config.run.directory))
    findings = Findings(driver=here, workers=(here,), storage=storage)
    use_virtual_devices(config.parallel)
    try:
        num_devices = jax.device_count()
    except RuntimeError as error:
        return replace(findings, failure=f"jax has no devices: {root_cause(error)}")
    findings = replace(findings, devices=(device_facts(config.train.compute_dtype),))
    try:
        shape = resolve_mesh(config, num_devices)
    except ConfigError as error:
        return replace(findings, mesh_failure=str(error))
    return replace(findings, links=measure_links(make_mesh(shape)))


def _storage(directory: Path) -> StorageFacts:
    token = secrets.token_hex(4)
    with left_as_found(directory):
        problem = write_probe(directory, token, 0)
        if problem is None and read_probe(directory, token, [0]):
            problem = "a file that was written cannot be read back"
        free = remove_probe(directory, token)
    problems = (problem,) if problem else ()
    return StorageFacts(directory=str(directory), free_bytes=free, problems=problems)
