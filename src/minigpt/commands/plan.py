"""``minigpt plan``."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.commands.options import parse_config, take_flag, take_option
from minigpt.errors import ConfigError, MiniGPTError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minigpt.config import Config
    from minigpt.plan.clusters import Cluster
    from minigpt.plan.search import Plan

_EXAMPLE = "minigpt plan --config recipes/gpt2-small.yaml --cluster-spec 2xg5.12xlarge"
_SCHEDULE_EXAMPLE = "minigpt plan --schedule --parallel.pipe 4 --parallel.microbatches 8"
_DESCRIPTION = """\
Rank the ways to spread a run over a cluster: memory, time, exchanges, cost.

--cluster-spec SPEC    laptop, NODESxKIND as 2xg5.12xlarge, or a YAML file
--top N                lines of the table (10)
--explain              say why the first beats the others, and what several nodes cost
--check                compile the first on virtual devices and compare with what was planned
--write FILE.yaml      save the first as a recipe for train
--json                 print JSON

With --schedule instead: draw which microbatch each pipeline stage works on at each tick;
--png FILE.png draws a picture too."""


def run(arguments: list[str]) -> None:
    """Rank plans, or draw a pipeline schedule."""
    pictures, rest = take_option(arguments, "--png", "FILE.png")
    draw, rest = take_flag(rest, "--schedule")
    options, rest = _take_options(rest)
    config = parse_config(rest, prog="minigpt plan", description=_DESCRIPTION)
    if draw:
        _draw(config, pictures)
    elif options.cluster_spec is None:
        raise ConfigError(
            "minigpt plan needs --cluster-spec for a ranking or --schedule for a picture; for "
            f"example {_EXAMPLE}, or {_SCHEDULE_EXAMPLE}"
        )
    elif pictures:
        raise ConfigError("--png draws the schedule: it needs --schedule")
    else:
        _rank(config, options.cluster_spec, options)


@dataclass(frozen=True, kw_only=True)
class _Options:
    cluster_spec: str | None
    top: int
    explain: bool
    check: bool
    as_json: bool
    write: Path | None


def _take_options(arguments: list[str]) -> tuple[_Options, list[str]]:
    specs, rest = take_option(arguments, "--cluster-spec", "SPEC")
    tops, rest = take_option(rest, "--top", "N")
    files, rest = take_option(rest, "--write", "FILE.yaml")
    explain, rest = take_flag(rest, "--explain")
    check, rest = take_flag(rest, "--check")
    as_json, rest = take_flag(rest, "--json")
    top = tops[-1] if tops else "10"
    if not top.isdigit() or int(top) == 0:
        raise ConfigError(f"--top must be a whole number of at least 1, got {top!r}")
    options = _Options(
        cluster_spec=specs[-1] if specs else None,
        top=int(top),
        explain=explain,
        check=check,
        as_json=as_json,
        write=Path(files[-1]) if files else None,
    )
    return options, rest


def _rank(config: "Config", spec: str, options: _Options) -> None:
    from rich.console import Console

    from minigpt.data.tokenizer import load_tokenizer
    from minigpt.model.sizes import padded_vocabulary
    from minigpt.plan.clusters import load_cluster
    from minigpt.plan.explain import explain
    from minigpt.plan.search import plans
    from minigpt.plan.table import plan_table, plan_values

    vocab_size = load_tokenizer(config.data.tokenizer).vocab_size
    padded = padded_vocabulary(vocab_size)

    def search(cluster: "Cluster") -> "Sequence[Plan]":
        try:
            return plans(config, cluster, vocab_size, padded)
        except ConfigError:  # this many devices do not divide the run
            return []

    found = plans(config, load_cluster(spec), vocab_size, padded)
    if options.as_json:
        print(json.dumps([plan_values(plan) for plan in found[: options.top]], indent=2))
    else:
        console = Console()
        console.print(plan_table(found[: options.top], total=len(found)))
        for paragraph in explain(found, search) if options.explain else ():
            console.print(paragraph, markup=False, highlight=False)
    best = found[0]
    if options.write is not None:
        _write(best, options.write)
    if options.check:
        _check(best)
    if not best.fits:
        raise MiniGPTError(
            f"no plan fits the memory of {best.cluster.name}; the nearest needs "
            f"{best.memory.total / 2**30:.1f} of {best.cluster.device_memory / 2**30:.1f} GiB "
            "(--explain says what would)"
        )


def _write(plan: "Plan", file: Path) -> None:
    """Save a plan as a recipe."""
    import yaml

    from minigpt.config import Config
    from minigpt.config_file import differences

    if not plan.fits:
        raise ConfigError(f"--write {file}: no plan fits, so there is none to save")
    cluster = plan.cluster
    on_ray = {"num_workers": cluster.nodes if cluster.nodes > 1 else 0}
    if cluster.nodes > 1:
        on_ray["devices_per_worker"] = cluster.devices_per_node
    config = replace(plan.config, cluster=replace(plan.config.cluster, **on_ray))
    groups: dict[str, dict[str, object]] = {}
    for name, (_, value) in differences(Config(), config).items():
        group, field = name.split(".")
        groups.setdefault(group, {})[field] = value
    text = (
        f"# Planned for {cluster.name}: {plan.time.total:.3g} s a step, "
        f"{plan.tokens_per_second:,.0f} tokens/s, {plan.memory.total / 2**30:.1f} GiB a device.\n"
        f"#   minigpt train --config {file.name}\n" + yaml.safe_dump(groups, sort_keys=False)
    )
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise ConfigError(
            f"--write {file}: the file exists and is kept; use another name"
        ) from error
    except OSError as error:
        raise ConfigError(f"--write {file} cannot be written: {error.strerror}") from error
    print(f"saved {file}")


def _check(plan: "Plan") -> None:
    """Compile a plan and compare; raises where it is not what was planned."""
    from minigpt.parallel.mesh import use_virtual_devices
    from minigpt.plan.check import check
    from minigpt.plan.table import agrees, check_lines

    use_virtual_devices(plan.config.parallel)
    print(f"checking {plan.label} on virtual devices (exchanges of a CPU are float32)", flush=True)
    checked = check(plan.config, plan.vocab_size)
    print("\n".join(check_lines(checked)))
    if not agrees(checked):
        raise MiniGPTError("the compiled program is not what was planned")


def _draw(config: "Config", pictures: list[str]) -> None:
    """Draw the pipeline schedule of a configuration."""
    parallel = config.parallel
    if parallel.pipe == 1:
        raise ConfigError(
            "parallel.pipe is 1: one stage has no pipeline to draw; use parallel.pipe 2 or more, "
            f"for example {_SCHEDULE_EXAMPLE}"
        )
    from rich.console import Console

    from minigpt.parallel.schedule import Schedule
    from minigpt.plan.timeline import timeline

    schedule = Schedule(
        parallel.schedule, parallel.pipe, parallel.interleave, parallel.microbatches
    )
    if pictures:  # matplotlib takes a second to import
        from minigpt.plan.picture import save_png

        for file in pictures:
            save_png(schedule, Path(file))
    console = Console()
    console.print(timeline(schedule, console.width), soft_wrap=True)
    for file in pictures:
        console.print(f"saved {file}", markup=False, highlight=False, soft_wrap=True)
