"""Sections of the page: facts and tables. Whatever comes from a file is escaped here."""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from statistics import median
from typing import Any

from minigpt.config import Config
from minigpt.config_file import flatten
from minigpt.report.run import Attempt, Run, Sample
from minigpt.report.text import count, duration, percent, size
from minigpt.report.time_split import USES, TimeSplit

_ENDS = {
    "steps": "finished: the last step",
    "target_loss": "finished: the target loss",
    "signal": "stopped by a signal, with a checkpoint",
    "non_finite": "stopped: loss or gradients not finite",
    None: "no end was written: killed, or still running",
}
_SHOWN_STEPS = 2  # with samples in full, beside the first and the last


def status(run: Run) -> str:
    """How the run stands, in a sentence."""
    if not run.attempts:
        return escape(f"At step {run.step} of {run.config.train.steps}; how it ended is not known.")
    last = run.attempts[-1]
    good = last.reason in ("steps", "target_loss")
    end = _end(last)
    return (
        f'<span class="{"" if good else "warn"}">{escape(end[0].upper() + end[1:])}</span> '
        f"(step {run.step} of {run.config.train.steps})."
    )


def _end(attempt: Attempt) -> str:
    return _ENDS.get(attempt.reason, f"ended by {attempt.reason}")


def tiles(run: Run, split: TimeSplit) -> str:
    """The numbers that people look for first."""
    facts = run.facts
    rates = [r.tokens_per_second for r in run.train_records if r.tokens_per_second is not None]
    mfus = [record.mfu for record in run.train_records if record.mfu is not None]
    found = [
        ("validation loss", f"{run.val_records[-1].loss:.4f}" if run.val_records else None),
        ("best validation loss", f"{min(r.loss for r in run.val_records):.4f}")
        if len(run.val_records) > 1
        else ("best validation loss", None),
        ("training loss", f"{run.train_records[-1].loss:.4f}" if run.train_records else None),
        ("steps", f"{run.step:,}"),
        ("tokens", count(run.tokens)),
        ("time", duration(split.elapsed)),
        ("tokens per second (median)", count(median(rates)) if rates else None),
        ("MFU (median)", percent(median(mfus)) if mfus else "n/a"),
        ("parameters", count(facts["num_parameters"]) if "num_parameters" in facts else None),
        ("devices", _devices(facts)),
    ]
    return f'<div class="tiles">{"".join(_tile(*tile) for tile in found)}</div>'


def _tile(label: str, value: str | None) -> str:
    if value is None:
        return ""
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def _devices(facts: Any) -> str | None:  # noqa: ANN401 - a mapping of JSON
    if "num_devices" not in facts:
        return None
    return f"{facts['num_devices']} x {facts.get('device_kind', '?')}"


def time_table(split: TimeSplit) -> str:
    """A bar and a table of what the time went to."""
    if split.elapsed <= 0:
        return '<p class="empty">no time was recorded</p>'
    used = [(use, split.seconds[use]) for use in USES if split.seconds[use] > 0]
    bar = "".join(
        f'<i style="width:{100 * seconds / split.elapsed:.3f}%;background:var(--u-{use})" '
        f'title="{USES[use]}"></i>'
        for use, seconds in used
    )
    lines = "".join(
        f'<tr><td><i class="key" style="background:var(--u-{use})"></i>{USES[use]}</td>'
        f'<td class="number">{duration(seconds)}</td>'
        f'<td class="number">{percent(seconds / split.elapsed)}</td></tr>'
        for use, seconds in used
    )
    notes = "".join(f'<p class="warn">{escape(note)}</p>' for note in split.notes)
    return (
        f'<div class="bar">{bar}</div><table><tbody>{lines}<tr><td><b>all</b></td>'
        f'<td class="number"><b>{duration(split.elapsed)}</b></td><td></td></tr></tbody></table>'
        f"{notes}"
    )


def attempts_table(run: Run) -> str:
    """Each start of the run: when, from which step, how far, how it ended."""
    if not run.attempts:
        return '<p class="empty">not known: the run has no events.jsonl</p>'
    lines = "".join(
        _row(
            str(number),
            _end(attempt),
            datetime.fromtimestamp(attempt.begin, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            attempt.launcher,
            str(attempt.ready.step) if attempt.ready else "-",
            str(attempt.last_step),
            duration(attempt.seconds),
        )
        for number, attempt in enumerate(run.attempts, 1)
    )
    heads = ("", "how it ended", "began (UTC)", "launcher", "from step", "to step", "lasted")
    return table(heads, lines)


def table(heads: Sequence[str], lines: str) -> str:
    """A table that scrolls in itself where it is too wide."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody>'
        "</table></div>"
    )


def _row(*cells: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<tr{attribute}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def memory(run: Run) -> str:
    """What XLA says that the compiled step needs on one device."""
    compiled = [e for attempt in run.attempts for e in attempt.events if e.kind == "compile"]
    if not compiled:
        return '<p class="empty">not known: the compiled step was not recorded</p>'
    held, temporary = (compiled[-1].number(name) for name in ("argument_bytes", "temporary_bytes"))
    parts = {
        "parameters, optimizer state and batch": held,
        "gradients, activations and buffers while a step runs": temporary,
        "together": held + temporary,
    }
    lines = "".join(
        f'<tr><td>{name}</td><td class="number">{size(part)}</td></tr>'
        for name, part in parts.items()
    )
    return f"<table><tbody>{lines}</tbody></table>"


def samples(run: Run) -> str:
    """Texts over time: the first, the last and some between; all others folded."""
    if not run.samples:
        return '<p class="empty">none were taken</p>'
    steps = sorted({sample.step for sample in run.samples})
    between = len(steps) - 1
    shown = {steps[between * part // (_SHOWN_STEPS + 1)] for part in range(_SHOWN_STEPS + 2)}
    folded = [sample for sample in run.samples if sample.step not in shown]
    parts = [_texts([sample for sample in run.samples if sample.step in shown])]
    if folded:
        parts.append(f"<details><summary>{len(folded)} more</summary>{_texts(folded)}</details>")
    return "".join(parts)


def _texts(found: Sequence[Sample]) -> str:
    texts: dict[int, str] = {}
    for sample in found:
        text = f'<p class="text"><b>{escape(sample.prompt)}</b>{escape(sample.text)}</p>'
        texts[sample.step] = texts.get(sample.step, "") + text
    cards = "".join(
        f'<div class="card"><h3 class="soft">after step {step}</h3>{text}</div>'
        for step, text in texts.items()
    )
    return f'<div class="samples">{cards}</div>'


def configuration(run: Run) -> str:
    """Every field; what is not the default is bold."""
    default = flatten(dataclasses.asdict(Config()))
    sections: list[str] = []
    for group, group_fields in dataclasses.asdict(run.config).items():
        lines = "".join(
            _row(name, _plain(value), kind="changed" * (value != default[f"{group}.{name}"]))
            for name, value in group_fields.items()
        )
        sections.append(f"<section><h3>{group}</h3><table><tbody>{lines}</tbody></table></section>")
    identity = "".join(_row(name, _plain(value)) for name, value in run.data_identity.items())
    sections.append(f"<section><h3>data (identity)</h3><table><tbody>{identity}</tbody></table>")
    return (
        '<p class="soft">Bold: not the default.</p>'
        f'<div class="groups">{"".join(sections)}</section></div>'
    )


def _plain(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 400 else f"{text[:400]} …"


def environment(run: Run) -> str:
    """Hardware and versions of the newest attempt."""
    facts = run.facts
    if not facts:
        return f'<p class="empty">only known: MiniGPT {escape(run.version)}</p>'
    names = {
        "platform": "platform",
        "device_kind": "device",
        "num_devices": "devices used",
        "num_processes": "processes",
        "num_nodes": "nodes",
        "processor": "processor",
        "system": "system",
    }
    lines = "".join(
        _row(label, _plain(facts[name])) for name, label in names.items() if name in facts
    )
    if facts.get("peak_flops"):
        lines += _row("peak FLOP/s of all devices", f"{facts['peak_flops']:.4g}")
    if "flops_per_token" in facts:
        lines += _row("FLOPs of a token", f"{facts['flops_per_token']:,}")
    versions = facts.get("versions")
    if isinstance(versions, dict):
        lines += "".join(_row(str(name), str(value)) for name, value in versions.items())
    return f"<table><tbody>{lines}</tbody></table>"
