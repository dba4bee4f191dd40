"""Presets and files of clusters."""

import dataclasses

import pytest
import yaml

from minigpt.errors import ConfigError
from minigpt.plan.clusters import Cluster, Link, Rates, load_cluster, write_cluster

FILE = """
nodes: 2
devices_per_node: 4
device_memory: 16e9
peak_flops: {float32: 1e12}
memory_bandwidth: 1e11
inside_node: {bandwidth: 1e10, latency: 1e-5}
between_nodes: {bandwidth: 1e9, latency: 5e-5}
price_per_hour: 3.6
"""


@pytest.mark.parametrize(
    ("spec", "nodes", "devices"),
    [
        ("2xg5.12xlarge", 2, 8),
        ("8xG4dn.xlarge", 8, 8),
        ("1xp4d.24xlarge", 1, 8),
        ("3xp5.48xlarge", 3, 24),
        ("g5.48xlarge", 1, 8),
        ("laptop", 1, 1),
    ],
)
def test_presets(spec, nodes, devices):
    cluster = load_cluster(spec)
    assert (cluster.nodes, cluster.num_devices) == (nodes, devices)
    assert cluster.matrix_rate("float32") > 0


def test_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(FILE)
    cluster = load_cluster(str(file))
    assert cluster.name == "mine"
    assert cluster.num_devices == 8
    assert cluster.inside_node == Link(bandwidth=1e10, latency=1e-5)
    assert cluster.dollars_per_second == pytest.approx(0.002)
    assert cluster.matrix_rate("float32") == 0.7e12
    file.write_text("base: 2xg5.12xlarge\nprice_per_hour: 1\nmatrix_flops: {bfloat16: 5e13}")
    based = load_cluster(str(file))
    assert based.matrix_rate("bfloat16") == 5e13
    assert dataclasses.replace(
        based, name="2xg5.12xlarge", price_per_hour=5.672, matrix_flops=Rates()
    ) == load_cluster("2xg5.12xlarge")


def test_what_was_measured_is_read_again(tmp_path):
    cluster = Cluster(
        name="here",
        device_memory=2.0**34,
        matrix_flops=Rates(bfloat16=1e12),
        memory_bandwidth=1e11,
    )
    write_cluster(cluster, tmp_path / "x.yaml", said="Measured.")
    assert load_cluster(str(tmp_path / "x.yaml")) == cluster
    with pytest.raises(ConfigError, match="cannot be written"):
        write_cluster(cluster, tmp_path / "none" / "x.yaml", said="")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("2xg5.12xlarg", "did you mean 2xg5.12xlarge?"),
        ("8xsomething", "neither a preset nor a YAML file; presets: laptop"),
        ("2xlaptop", "laptop is one machine"),
        ("0xp5.48xlarge", "did you mean 1xp5.48xlarge?"),
        ("none/x.yaml", "cannot be read"),
    ],
)
def test_unknown_specs(spec, message):
    with pytest.raises(ConfigError) as raised:
        load_cluster(spec)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device_memory": None}, "missing: device_memory"),
        ({"between_nodes": None}, "between_nodes is missing: 2 nodes need"),
        ({"inside_node": None}, "inside_node is missing: 4 devices"),
        ({"inside_node": {"bandwidth": 1}}, "missing: inside_node.latency"),
        ({"inside_node": {"bandwidth": 0, "latency": 0}}, "inside_node needs a bandwidth above 0"),
        ({"peak_flops": None}, "peak_flops or matrix_flops needs a rate"),
        ({"memory_bandwidth": -1}, "memory_bandwidth must be above 0, got -1"),
        ({"node": 3}, "unknown field 'node'; did you mean 'nodes'?"),
    ],
)
def test_wrong_files(tmp_path, changes, message):
    values = yaml.safe_load(FILE) | changes
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump({k: v for k, v in values.items() if v is not None}))
    with pytest.raises(ConfigError) as raised:
        load_cluster(str(file))
    assert message in str(raised.value)


def test_a_dtype_without_a_rate(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(FILE)
    with pytest.raises(ConfigError, match=r"no bfloat16 rate: give peak_flops\.bfloat16"):
        load_cluster(str(file)).matrix_rate("bfloat16")
