"""The run directory: which configuration and data a run belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minigpt import __version__
from minigpt.config import Config
from minigpt.config_file import (
    config_from_mapping,
    config_to_yaml,
    differences,
    read_yaml,
)
from minigpt.errors import CheckpointError, ConfigError

# What may change between the parts of one run: the rest decides what is learned.
_FREE_GROUPS = ("run.", "parallel.", "checkpoint.", "cluster.")
_FREE_FIELDS = {
    "data.path": "the fingerprint of the data decides",
    "data.max_stories": "the fingerprint of the data decides",
    "train.steps": "a run may be made longer",
    "train.log_every": "what is written",
    "train.eval_every": "what is written",
    "train.eval_rows": "what is written",
    "train.sample_every": "what is written",
    "train.target_loss": "when to stop",
    "train.peak_flops": "what is written",
}


@dataclass(frozen=True)
class RunDirectory:
    """``runs/NAME`` and the files in it."""

    path: Path

    @classmethod
    def of(cls, config: Config) -> "RunDirectory":
        """The directory of a configuration's run."""
        return cls(Path(config.run.directory) / config.run.name)

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        """Orbax's folder, one folder in it for each step."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's events."""
        return self.path / "tensorboard"

    def newest_step(self) -> int | None:
        """Step of the newest complete checkpoint, if there is one."""
        entries = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        return max((int(entry.name) for entry in entries if entry.name.isdigit()), default=None)

    def write_config(self, config: Config, data: Mapping[str, Any]) -> None:
        """Write the configuration with MiniGPT's version and what identifies the data."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = config_to_yaml(config, minigpt_version=__version__, data_identity=dict(data))
        temporary = self.config_file.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.config_file)

    def read_config(self) -> tuple[Config, dict[str, Any]]:
        """The configuration and the data identity of the run.

        Raises:
            CheckpointError: there is no run here.
            ConfigError: its configuration cannot be read.
        """
        if not self.config_file.is_file():
            runs = sorted(p.parent.name for p in self.path.parent.glob("*/config.yaml"))
            known = f"; runs there: {', '.join(runs)}" if runs else ""
            raise CheckpointError(f"{str(self.path)!r} is not a run directory{known}")
        mapping = dict(read_yaml(self.config_file))
        mapping.pop("minigpt_version", None)
        identity = mapping.pop("data_identity", {})
        return config_from_mapping(mapping, base=Config(), source=str(self.config_file)), identity

    def check_resume(self, config: Config, data: Mapping[str, Any]) -> bool:
        """Whether to continue from a checkpoint (else the run is new), by ``run.resume``.

        Raises:
            ConfigError: ``run.resume`` forbids it, or the run here has another configuration or
                other data; the message names the fields that differ.
        """
        exists = self.newest_step() is not None
        if config.run.resume == "must" and not exists:
            raise ConfigError(
                f"run.resume is 'must', but {str(self.path)!r} has no checkpoint: check run.name, "
                "or use run.resume auto to start it"
            )
        if not exists:
            return False
        if config.run.resume == "never":
            raise ConfigError(
                f"run.resume is 'never', but {str(self.path)!r} has checkpoints, which are not "
                "overwritten: choose another run.name, or use run.resume auto to continue"
            )
        old_config, old_data = self.read_config()
        imported = not old_data  # nothing was trained on yet
        changed = [
            f"{name}: {old} there, {new} here"
            for name, (old, new) in differences(old_config, config).items()
            if not (_is_free(name) or (imported and _is_free_after_import(name)))
        ]
        if not imported:
            changed += _data_changes(old_data, data)
        if changed:
            listed = "".join(f"\n  {change}" for change in changed)
            raise ConfigError(
                f"{str(self.path)!r} belongs to another run; these differ:{listed}\n"
                "choose another run.name for a new run, or use the same values to continue"
            )
        return True


def _is_free(name: str) -> bool:
    return name.startswith(_FREE_GROUPS) or name in _FREE_FIELDS


def _is_free_after_import(name: str) -> bool:
    """Everything but what the weights themselves are of."""
    is_of_weights = name.startswith("model.") and name != "model.dropout"
    return not is_of_weights and name != "data.tokenizer"


def _data_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two corpus identities, file by file."""
    if "files" not in old or "files" not in new:
        return [f"data: {_describe(old)} there, {_describe(new)} here"] * (dict(old) != dict(new))
    before, after = _hashes_by_name(old), _hashes_by_name(new)
    changes = [
        f"data file {name}: {_verdict(name, before, after)}"
        for name in after | before
        if before.get(name) != after.get(name)
    ]
    if not changes and _names(old) != _names(new):
        changes.append(f"data files: in the order {_names(old)} there, {_names(new)} here")
    if old["max_stories"] != new["max_stories"]:
        changes.append(f"data.max_stories: {old['max_stories']} there, {new['max_stories']} here")
    return changes


def _hashes_by_name(identity: Mapping[str, Any]) -> dict[str, list[str]]:
    """Contents under each name, in order: files in several folders may share a name."""
    hashes: dict[str, list[str]] = {}
    for name, digest in identity["files"]:
        hashes.setdefault(name, []).append(digest)
    return hashes


def _names(identity: Mapping[str, Any]) -> str:
    return ", ".join(name for name, _ in identity["files"])


def _verdict(name: str, before: Mapping[str, object], after: Mapping[str, object]) -> str:
    if name not in after:
        return "used there, missing here"
    return "its content changed" if name in before else "new here"


def _describe(identity: Mapping[str, Any]) -> str:
    if "files" in identity:
        return f"files {_names(identity)}"
    return (
        f"the built-in corpus ({identity.get('num_stories')} stories, "
        f"generator {str(identity.get('builtin'))[:8]})"
    )
