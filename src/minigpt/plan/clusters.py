"""What a plan knows of the hardware: presets, and files that a user or a measurement wrote.

All rates are per second, sizes in bytes, prices in US dollars.
"""

import dataclasses
import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path

from minigpt.config_file import from_mapping, read_yaml
from minigpt.config_rules import at_least, require
from minigpt.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """FLOP/s of one device by compute dtype."""

    float32: float | None = None
    """As jax multiplies float32 matrices: TF32 on GPUs that have it."""
    bfloat16: float | None = None

    def of(self, dtype: str) -> float | None:
        """The rate of a dtype, if it is known."""
        return getattr(self, dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What devices exchange messages over."""

    bandwidth: float
    """Bytes/s: inside a node of each device, between nodes of each node, in one direction."""
    latency: float
    """Seconds for a hop of the smallest message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Nodes of equal devices."""

    name: str
    nodes: int = 1
    devices_per_node: int = 1
    platform: str = "cuda"
    """cpu, cuda or tpu."""
    device_memory: float
    """Bytes of one device that a program can use."""
    peak_flops: Rates
    """The data sheet's dense FLOP/s of one device: what MFU is counted against."""
    matrix_flops: Rates = field(default_factory=Rates)
    """Measured FLOP/s of a large matrix product on one device; null: REACHABLE x the peak."""
    memory_bandwidth: float
    """Bytes/s of one device's memory."""
    inside_node: Link
    between_nodes: Link | None = None
    """Null where there is one node."""
    price_per_hour: float | None = None
    """Of one node."""
    price_date: str | None = None
    """When the price was true, and of what."""

    def __post_init__(self) -> None:
        """Check what a plan divides by."""
        at_least(self, "cluster", 1, "nodes", "devices_per_node", "device_memory")
        for name in ("memory_bandwidth", "price_per_hour"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name} must be above 0, got {value}")
        links = {"inside_node": self.inside_node, "between_nodes": self.between_nodes}
        for name, link in links.items():
            require(
                link is None or (link.bandwidth > 0 and link.latency >= 0),
                f"{name} needs a bandwidth above 0 and a latency of at least 0, got {link}",
            )
        require(
            self.nodes == 1 or self.between_nodes is not None,
            f"between_nodes is missing: {self.nodes} nodes need its bandwidth and latency",
        )
        rates = (*dataclasses.astuple(self.peak_flops), *dataclasses.astuple(self.matrix_flops))
        require(
            any(rates) and all(rate is None or rate > 0 for rate in rates),
            "peak_flops or matrix_flops needs a rate above 0 for float32 or bfloat16, got "
            f"{self.peak_flops} and {self.matrix_flops}",
        )

    @property
    def num_devices(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.devices_per_node

    @property
    def dollars_per_second(self) -> float | None:
        """Price of all nodes."""
        return None if self.price_per_hour is None else self.nodes * self.price_per_hour / 3600

    def matrix_rate(self, dtype: str) -> float:
        """FLOP/s that a large matrix product of a dtype reaches on one device.

        Raises:
            ConfigError: the cluster has no rate of the dtype.
        """
        if measured := self.matrix_flops.of(dtype):
            return measured
        if peak := self.peak_flops.of(dtype):
            return REACHABLE * peak
        other = "float32" if dtype == "bfloat16" else "bfloat16"
        raise ConfigError(
            f"{self.name} has no {dtype} rate: give peak_flops.{dtype} or matrix_flops.{dtype} in "
            f"the cluster's file, or plan with --train.compute-dtype {other}"
        )


REACHABLE = 0.7
"""Share of the data sheet's peak that large matrix products reach where none was measured."""

_GPU_LATENCY = 10e-6
_NETWORK_LATENCY = 40e-6


def _node(  # noqa: PLR0913 - a line of a table
    name: str,
    devices: int,
    memory_gib: float,
    flops: tuple[float, float],
    memory_bandwidth: float,
    link: float,
    network: float,
    price: float,
    date: str,
) -> Cluster:
    return Cluster(
        name=name,
        devices_per_node=devices,
        device_memory=memory_gib * GIB,
        peak_flops=Rates(float32=flops[0], bfloat16=flops[1]),
        memory_bandwidth=memory_bandwidth,
        inside_node=Link(bandwidth=link, latency=_GPU_LATENCY),
        between_nodes=Link(bandwidth=network, latency=_NETWORK_LATENCY),
        price_per_hour=price,
        price_date=date,
    )


_DATE = "2025-06, on demand, us-east-1"
# Rates from the makers' data sheets, memory as a program finds it. The links of PCIe boards go
# through the host; those of NVLink are what all-reduces reach of it. Networks are what a node can
# keep up, not what it may burst to (g4dn.xlarge: "up to 25 Gbit/s", 5 for long). A T4 has no
# bfloat16 units, so that XLA computes it in float32. T4 and A10G: 8.1 and 31.2 (TF32 35) TFLOP/s.
_PRESETS = (
    _node("g4dn.xlarge", 1, 14.5, (8.1e12, 8.1e12), 320e9, 10e9, 0.625e9, 0.526, _DATE),
    _node("g4dn.12xlarge", 4, 14.5, (8.1e12, 8.1e12), 320e9, 8e9, 6.25e9, 3.912, _DATE),
    _node("g5.xlarge", 1, 22.0, (35e12, 70e12), 600e9, 20e9, 0.3125e9, 1.006, _DATE),
    _node("g5.12xlarge", 4, 22.0, (35e12, 70e12), 600e9, 12e9, 5e9, 5.672, _DATE),
    _node("g5.48xlarge", 8, 22.0, (35e12, 70e12), 600e9, 12e9, 12.5e9, 16.288, _DATE),
    _node("p4d.24xlarge", 8, 39.0, (156e12, 312e12), 1555e9, 230e9, 50e9, 21.958, _DATE),
    _node("p5.48xlarge", 8, 78.0, (495e12, 989e12), 3350e9, 370e9, 400e9, 55.04, _DATE),
    Cluster(
        name="laptop",
        platform="cpu",
        device_memory=12 * GIB,
        peak_flops=Rates(float32=500e9, bfloat16=500e9),
        memory_bandwidth=40e9,
        inside_node=Link(bandwidth=10e9, latency=20e-6),
    ),
)


def load_cluster(spec: str) -> Cluster:
    """The cluster that a preset (``laptop``, ``2xg5.12xlarge``) or a YAML file describes.

    Raises:
        ConfigError: there is no such preset or file, or the file is wrong.
    """
    if spec.endswith((".yaml", ".yml")) or "/" in spec:
        return _from_file(Path(spec))
    presets = {cluster.name: cluster for cluster in _PRESETS}
    match = re.fullmatch(r"(?:(\d+)x)?(.+)", spec.lower())
    assert match is not None
    number, name = int(match[1] or 1), match[2]
    if name in presets and number > 0:
        preset = presets[name]
        if preset.between_nodes is None and number > 1:
            raise ConfigError(f"--cluster-spec {spec}: {name} is one machine; use {name}")
        label = f"{number}x{name}" if preset.between_nodes else name
        return dataclasses.replace(preset, name=label, nodes=number)
    close = difflib.get_close_matches(name, presets, n=1)
    hint = f"did you mean {number or 1}x{close[0]}? " if close else ""
    raise ConfigError(
        f"--cluster-spec {spec!r} is neither a preset nor a YAML file; {hint}presets: laptop, or a "
        f"number of nodes and their kind, as 2xg5.12xlarge, with {', '.join(list(presets)[:-1])}"
    )


def _from_file(file: Path) -> Cluster:
    """A cluster of a file; what it leaves out is of the preset that it names as ``base``."""
    mapping = dict(read_yaml(file))
    base = mapping.pop("base", None)
    preset = None if base is None else load_cluster(str(base))
    return from_mapping(Cluster, {"name": file.stem, **mapping}, base=preset, source=str(file))
