"""Configurations as YAML: reading with exact errors, writing, and comparing."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from minigpt.config import Config
from minigpt.errors import ConfigError


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice, where YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - as in PyYAML
        """The mapping, if its keys differ."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if repeated := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(
                None, None, f"key {repeated!r} stands twice", node.start_mark
            )
        return super().construct_mapping(node, deep=deep)


def load_config(path: Path, *, base: Config | None = None) -> Config:
    """Read a YAML file of the fields of ``Config`` on top of ``base`` (the defaults).

    Raises:
        ConfigError: the file cannot be read, is not YAML, names an unknown field or gives a
            field a value of the wrong type.
    """
    return config_from_mapping(read_yaml(path), base=base or Config(), source=str(path))


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: the file cannot be read or does not hold a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {str(path)!r} cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2024-13-45
        raise ConfigError(f"configuration file {str(path)!r} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"configuration file {str(path)!r} must hold groups such as 'model:' with fields "
            f"under them, got a {type(content).__name__}"
        )
    return typing.cast("Mapping[str, Any]", content)


def config_from_mapping(mapping: Mapping[str, Any], *, base: Config, source: str) -> Config:
    """``base`` with the fields that ``mapping`` names.

    Raises:
        ConfigError: a field is unknown or has the wrong type; ``source`` is named.
    """
    return typing.cast("Config", _replace(base, mapping, "", source))


def _replace(base: Any, mapping: Mapping[str, Any], prefix: str, source: str) -> Any:  # noqa: ANN401 - any group
    hints = typing.get_type_hints(type(base))
    changes: dict[str, Any] = {}
    for name, value in mapping.items():
        path = f"{prefix}{name}"
        if name not in hints:
            raise ConfigError(f"{source}: unknown field {path!r}{_suggestion(name, hints, prefix)}")
        current = getattr(base, name)
        if not dataclasses.is_dataclass(current):
            changes[name] = _checked(value, hints[name], path, source)
        elif value is None:  # a group whose fields are all commented out
            continue
        elif isinstance(value, dict):
            group = typing.cast("Mapping[str, Any]", value)
            changes[name] = _replace(current, group, path + ".", source)
        else:
            raise ConfigError(
                f"{source}: {path!r} is a group of fields, got {value!r}: put "
                f"{', '.join(typing.get_type_hints(type(current)))} under it"
            )
    try:
        return dataclasses.replace(base, **changes)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def _suggestion(name: str, hints: Mapping[str, Any], prefix: str) -> str:
    """The nearest valid name: a field of that name elsewhere, else in this group, else near one."""
    everywhere = {
        field.name: f"{group.name}.{field.name}"
        for group in dataclasses.fields(Config)
        for field in dataclasses.fields(typing.get_type_hints(Config)[group.name])
    }
    if name in everywhere:
        return f"; did you mean {everywhere[name]!r}?"
    if close := difflib.get_close_matches(str(name), hints, n=1, cutoff=0.5):
        return f"; did you mean {prefix + close[0]!r}?"
    if close := difflib.get_close_matches(str(name), everywhere, n=1, cutoff=0.7):
        return f"; did you mean {everywhere[close[0]]!r}?"
    return f"; valid here: {', '.join(hints)}"


def _checked(value: Any, hint: Any, path: str, source: str) -> Any:  # noqa: ANN401 - any field
    """``value`` if it has the type ``hint``, a number written as text included (1e-3 in YAML)."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if option is types.NoneType and value is None:
            return None
        if typing.get_origin(option) is Literal and value in typing.get_args(option):
            return value
        if option in (bool, str, int) and type(value) is option:
            return value
        if option is float and type(value) in (int, float, str):
            try:
                return float(value)
            except (ValueError, OverflowError):
                continue
    expected = " or ".join(_describe(option) for option in options)
    raise ConfigError(
        f"{source}: {path!r} must be {expected}, got {value!r} ({type(value).__name__})"
        + _nearest_choice(value, options, path)
    )


def _describe(option: Any) -> str:  # noqa: ANN401 - any type hint
    if typing.get_origin(option) is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(option))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(option, "null")


def _nearest_choice(value: Any, options: tuple[Any, ...], path: str) -> str:  # noqa: ANN401 - any
    choices = [str(choice) for option in options for choice in typing.get_args(option)]
    close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    return f"; did you mean {path}: {close[0]}?" if close else ""


def config_to_yaml(config: Config, **extra: Any) -> str:  # noqa: ANN401 - plain YAML values
    """The configuration as YAML text, with ``extra`` keys before it."""
    return yaml.safe_dump({**extra, **dataclasses.asdict(config)}, sort_keys=False)


def differences(old: Config, new: Config) -> dict[str, tuple[object, object]]:
    """The dotted fields in which two configurations differ, with both values."""
    before, after = flatten(dataclasses.asdict(old)), flatten(dataclasses.asdict(new))
    return {
        name: (before.get(name), after.get(name))
        for name in after | before
        if before.get(name) != after.get(name)
    }


def flatten(tree: dict[str, object], prefix: str = "") -> dict[str, object]:
    """Nested dictionaries as one dictionary with dotted names."""
    flat: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            flat[prefix + name] = value
    return flat
