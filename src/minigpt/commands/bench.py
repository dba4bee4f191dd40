"""``minigpt bench``."""

import json
from pathlib import Path

from minigpt.commands.options import parse_config, take_flag, take_option


def run(arguments: list[str]) -> None:
    """Measure the training step and print the result."""
    files, rest = take_option(arguments, "--write", "FILE.yaml")
    as_json, rest = take_flag(rest, "--json")
    config = parse_config(
        rest,
        prog="minigpt bench",
        description="Measure the training step of a configuration against this machine's own "
        "matrix products. --json prints JSON instead of a table. --write FILE.yaml writes what one "
        "device reaches, for minigpt plan --cluster-spec FILE.yaml.",
    )
    from minigpt.bench import bench, table
    from minigpt.plan.clusters import Cluster, Rates, write_cluster
    from minigpt.train.console import make_console

    result = bench(config)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        make_console().print(table(result))
    for file in files:
        cluster = Cluster(
            name=result["device"],
            platform=result["platform"],
            device_memory=result["device_memory_bytes"],
            matrix_flops=Rates(
                **{result["compute_dtype"]: result["device_matmul_flops_per_second"]}
            ),
            memory_bandwidth=result["device_elementwise_bytes_per_second"],
        )
        write_cluster(cluster, Path(file), said="Measured by `minigpt bench`.")
