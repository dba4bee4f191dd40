"""``minigpt compare``."""

import json as json_format
from dataclasses import dataclass
from pathlib import Path

import tyro
from tyro.conf import Positional, UseAppendAction

from minigpt.config_rules import require


@dataclass(frozen=True, kw_only=True)
class CompareArguments:
    """Put runs side by side: time and money to reach a loss, what the time went to, speed."""

    runs: Positional[tuple[Path, ...]]
    """Two or more run directories."""
    loss: float | None = None
    """The loss to reach; none: the lowest that all have reached."""
    price_per_hour: UseAppendAction[tuple[float, ...]] = ()
    """US dollars per hour for all devices of a run: once for all runs, or once for each."""
    cluster_spec: UseAppendAction[tuple[str, ...]] = ()
    """Instead of prices: the clusters of the runs, as for minigpt plan."""
    png: Path | None = None
    """A picture to write: loss against steps, tokens, time and money."""
    json: bool = False
    """Print JSON instead of tables."""
    anyway: bool = False
    """Compare runs of different text or tokenizers too, with a warning."""


def run(arguments: list[str]) -> None:
    """Compare runs and print what was found."""
    options = tyro.cli(CompareArguments, prog="minigpt compare", args=arguments)
    from minigpt.report.compare import charts, compare
    from minigpt.report.run import read_run

    comparison = compare(
        [read_run(path) for path in options.runs],
        loss=options.loss,
        prices=_prices(options),
        anyway=options.anyway,
    )
    if options.png is not None:  # matplotlib takes a second to import
        from minigpt.report.png import save_together

        save_together(charts(comparison), options.png)
    from minigpt.report.compare_table import as_json, facts_table, samples_table

    if options.json:
        print(json_format.dumps(as_json(comparison), indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    for warning in comparison.warnings:
        console.print(f"warning: {warning}", style="yellow")
    how = "given" if comparison.loss_is_given else "the lowest that all have reached"
    console.print(f"{comparison.measure} {comparison.loss:.4f} ({how})", style="bold")
    console.print(facts_table(comparison))
    if any(side.last_samples for side in comparison.sides):
        console.print("the last samples", style="bold")
        console.print(samples_table(comparison))
    if options.png is not None:
        console.print(f"saved {options.png}", soft_wrap=True)


def _prices(options: CompareArguments) -> tuple[float, ...]:
    """Of all devices of each run, per hour."""
    if not options.cluster_spec:
        return options.price_per_hour
    require(
        not options.price_per_hour,
        f"--price-per-hour {options.price_per_hour} and --cluster-spec {options.cluster_spec} both "
        "give prices; use one of them",
    )
    from minigpt.plan.clusters import load_cluster

    prices: list[float] = []
    for spec in options.cluster_spec:
        cluster = load_cluster(spec)
        require(
            cluster.price_per_hour is not None,
            f"--cluster-spec {spec}: {cluster.name} has no price_per_hour; give it in a file "
            f"(base: {spec}), or use --price-per-hour",
        )
        prices.append(cluster.nodes * (cluster.price_per_hour or 0.0))
    return tuple(prices)
