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
    return from_mapping(Config, mapping, base=base, source=source)


def from_mapping[T](cls: type[T], mapping: Mapping[str, Any], *, base: T | None, source: str) -> T:
    """A dataclass of ``base``'s fields (none: its own defaults), with those ``mapping`` names.

    Raises:
        ConfigError: a field is unknown, missing or has the wrong type; ``source`` is named.
    """
    return typing.cast("T", _Reader(cls, source).read(cls, mapping, base, ""))


class _Reader:
    """Reads one mapping into dataclasses; ``root`` is the outermost."""

    def __init__(self, root: type, source: str) -> None:
        self._root, self._source = root, source

    def read(self, cls: type, mapping: Mapping[str, Any], base: object, prefix: str) -> object:
        hints = typing.get_type_hints(cls)
        values: dict[str, Any] = {}
        for name, value in mapping.items():
            path = f"{prefix}{name}"
            if name not in hints:
                suggestion = _suggestion(name, hints, prefix, self._root)
                raise ConfigError(f"{self._source}: unknown field {path!r}{suggestion}")
            group = next((o for o in _options(hints[name]) if dataclasses.is_dataclass(o)), None)
            if group is None:
                values[name] = _checked(value, hints[name], path, self._source)
            elif isinstance(value, dict):
                below = typing.cast("Mapping[str, Any]", value)
                current = getattr(base, name, None)
                values[name] = self.read(typing.cast("type", group), below, current, path + ".")
            elif value is not None:  # null: a group whose fields are all commented out
                raise ConfigError(
                    f"{self._source}: {path!r} is a group of fields, got {value!r}: put "
                    f"{', '.join(typing.get_type_hints(group))} under it"
                )
        return self._made(cls, values, base, prefix)

    def _made(self, cls: type, values: dict[str, Any], base: object, prefix: str) -> object:
        missing = dataclasses.MISSING
        needed = [
            prefix + field.name
            for field in dataclasses.fields(cls)
            if base is None
            and field.name not in values
            and field.default is missing
            and field.default_factory is missing
        ]
        if needed:
            raise ConfigError(f"{self._source}: missing: {', '.join(needed)}")
        try:
            if base is None:
                return cls(**values)
            return dataclasses.replace(typing.cast("Any", base), **values)
        except ConfigError as error:
            raise ConfigError(f"{self._source}: {error}") from error


def _options(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any type hint
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _suggestion(name: str, hints: Mapping[str, Any], prefix: str, root: type) -> str:
    """The nearest valid name: a field of that name elsewhere, else in this group, else near one."""
    everywhere = {
        field.name: f"{group}.{field.name}"
        for group, hint in typing.get_type_hints(root).items()
        for option in _options(hint)
        if dataclasses.is_dataclass(option)
        for field in dataclasses.fields(option)
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
    options = _options(hint)
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
