"""The planner against published tables: its mesh beside the published one, MFU against MFU.

    uv run python benchmarks/published.py [--json]

For each cell of nanotron's table: the published mesh and its MFU, what the planner predicts for
that mesh, and the mesh that the planner would take. Over all cells: Spearman's rank correlation of
predicted and published MFU, and the mean absolute error.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from minigpt.config import Config, ModelConfig, ParallelConfig, TrainConfig
from minigpt.errors import ConfigError
from minigpt.model.sizes import padded_vocabulary
from minigpt.plan.clusters import load_cluster
from minigpt.plan.search import Plan, plans

FOLDER = Path(__file__).parent / "published"


def cells(*, search: bool = True) -> list[dict[str, Any]]:
    """A comparison for each cell; without ``search`` only of the published meshes."""
    table = yaml.safe_load((FOLDER / "nanotron.yaml").read_text())
    vocab = table["vocab_size"]
    found: list[dict[str, Any]] = []
    for nodes, size, mfu, gigabytes, data, tensor, pipe, accumulation, _, zero in table["cells"]:
        model = ModelConfig(seq_length=table["seq_length"], **table["models"][size])
        train = TrainConfig(global_batch_size=table["global_batch_size"], compute_dtype="bfloat16")
        config = Config(model=model, train=train)
        config = replace(config, cluster=replace(config.cluster, platform="cuda"))
        cluster = load_cluster(f"{nodes}x{table['cluster']}")
        best = plans(config, cluster, vocab, padded_vocabulary(vocab))[0] if search else None
        published = None
        try:
            mesh = ParallelConfig(
                pipe=pipe, data=data, model=tensor, microbatches=accumulation, zero=zero
            )
            published = Plan(
                replace(config, parallel=mesh), cluster, vocab, padded_vocabulary(vocab)
            )
        except ConfigError:  # stages of unequal numbers of layers
            pass
        found.append(
            {
                "nodes": nodes,
                "billion_parameters": size,
                "published": {
                    "mesh": f"{pipe} x {data} x {tensor}, m {accumulation}"
                    + (", zero 1" if zero else ""),
                    "mfu_percent": mfu,
                    "gigabytes": gigabytes,
                },
                "predicted_for_it": None
                if published is None
                else {
                    "mfu_percent": 100 * (published.mfu or 0),
                    "gigabytes": published.memory.total / 1e9,
                },
                "planned": None
                if best is None
                else {
                    "mesh": best.label,
                    "mfu_percent": 100 * (best.mfu or 0),
                    "gigabytes": best.memory.total / 1e9,
                    "fits": best.fits,
                },
            }
        )
    return found


def summary(found: list[dict[str, Any]]) -> dict[str, float]:
    """Correlation and error over the cells."""
    pairs = [
        (cell["predicted_for_it"]["mfu_percent"], cell["published"]["mfu_percent"])
        for cell in found
        if cell["predicted_for_it"] is not None
    ]
    figures: dict[str, float] = {
        "cells": len(found),
        "meshes that MiniGPT can build": len(pairs),
    } | _agreement(pairs, "published meshes")
    best = [
        (cell["planned"]["mfu_percent"], cell["published"]["mfu_percent"])
        for cell in found
        if cell["planned"] is not None
    ]
    return figures | (_agreement(best, "planned meshes") if best else {})


def _agreement(pairs: list[tuple[float, float]], of: str) -> dict[str, float]:
    return {
        f"rank correlation, {of}": spearman(pairs),
        f"mean absolute error of MFU, points, {of}": mean_error(pairs),
    }


def spearman(pairs: list[tuple[float, float]]) -> float:
    """Correlation of ranks (no ties to speak of in measured figures)."""
    ranks = [
        [sorted(column).index(value) for value in column] for column in zip(*pairs, strict=True)
    ]
    n = len(pairs)
    return 1 - 6 * sum((a - b) ** 2 for a, b in zip(*ranks, strict=True)) / (n * (n * n - 1))


def mean_error(pairs: list[tuple[float, float]]) -> float:
    """Mean of absolute differences."""
    return sum(abs(a - b) for a, b in pairs) / len(pairs)


def show(found: list[dict[str, Any]]) -> None:
    """The table and the summary."""
    table = Table(title="nanotron's best and the planner's")
    for name in ("nodes", "1e9 params", "published mesh", "MFU %", "predicted for it %"):
        table.add_column(name, justify="right")
    for name in ("planned mesh", "MFU %"):
        table.add_column(name, justify="right")
    for cell in found:
        published, predicted, planned = (
            cell["published"],
            cell["predicted_for_it"],
            cell["planned"],
        )
        table.add_row(
            str(cell["nodes"]),
            str(cell["billion_parameters"]),
            published["mesh"],
            f"{published['mfu_percent']:.1f}",
            "-" if predicted is None else f"{predicted['mfu_percent']:.1f}",
            planned["mesh"] + ("" if planned["fits"] else " (does not fit)"),
            f"{planned['mfu_percent']:.1f}",
        )
    console = Console()
    console.print(table)
    for name, value in summary(found).items():
        console.print(f"{name}: {value:.3g}", highlight=False)


if __name__ == "__main__":
    comparisons = cells()
    if "--json" in sys.argv[1:]:
        print(json.dumps({"cells": comparisons, "summary": summary(comparisons)}, indent=1))
    else:
        show(comparisons)
