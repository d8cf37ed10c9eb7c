"""Settings in files: a TOML file that a person writes, or the config.json of a run."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from partialsgd._util.files import read_json
from partialsgd.lab.recipes import RECIPES, presets, require_recipe
from partialsgd.lab.training.settings import Settings

Values: TypeAlias = dict[str, Any]
"""Some settings by name; the preset decides the others."""


def resolve(recipe: str, values: Mapping[str, Any]) -> Settings:
    """Make the settings from the values, over those of the preset that is among them."""
    checked = {name: _check(recipe, name, value) for name, value in values.items()}
    named = presets(recipe)
    base = named[checked.pop("preset", next(iter(named)))]
    try:
        return dataclasses.replace(base, **checked)
    except ValueError as error:
        raise ValueError(f"{_culprit(base, checked)}{error}") from None


def groups(kind: type[Settings]) -> list[type[Any]]:
    """The `…Options` classes of a settings class, in the order in which `--help` and `--show-settings` show them."""
    return [base for base in kind.__mro__ if base.__name__.endswith("Options")]


@cache
def _types(recipe: str) -> Mapping[str, Any]:
    hints = get_type_hints(RECIPES[recipe])
    return {field.name: hints[field.name] for field in dataclasses.fields(RECIPES[recipe])}


def read(path: Path) -> tuple[str | None, Values]:
    """Read a file: the recipe that it names, if any, and its values, with underscores in their names."""
    content = _read_json(path) if path.suffix == ".json" else _read_toml(path)
    recipe = content.pop("recipe", None)
    if recipe is not None:
        try:
            require_recipe(recipe)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    values = {name.replace("-", "_"): value for name, value in content.items()}
    if len(values) < len(content):
        raise ValueError(f"{path}: a setting occurs twice, once with a dash and once with an underscore")
    return recipe, values


def to_toml(settings: Settings) -> str:
    """Write settings as a file that `read` accepts. None is left out, unless it changes the preset's value."""
    named = presets(settings.recipe)
    base = named[getattr(settings, "preset", next(iter(named)))]
    grouped = [field.name for group in groups(type(settings)) for field in dataclasses.fields(group)]
    others = [field.name for field in dataclasses.fields(settings) if field.name not in grouped]
    lines = [f"recipe = {_toml_value(settings.recipe)}"]
    for name in sorted([*others, *grouped], key=lambda name: name != "preset"):
        value = getattr(settings, name)
        if value is not None or getattr(base, name) is not None:
            lines.append(f"{name} = {_toml_value(value)}")
    comments = settings.comments()
    lines += ["", *(f"# {line}".rstrip() for line in comments)] if comments else []
    return "\n".join(lines) + "\n"


def _read_toml(path: Path) -> Values:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error


def _read_json(path: Path) -> Values:
    """Read a run's config.json. The directory of that run is left out: a new run has its own."""
    try:
        config = read_json(path)
        values = {name: value for name, value in config["settings"].items() if name != "out"}
        return {"recipe": config["recipe"], **values}
    except (ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not the config.json of a run ({error!r})") from error


def _check(recipe: str, name: str, value: Any) -> Any:
    """Convert a value to the type of its setting."""
    hints = _types(recipe)
    if name not in hints:
        close = get_close_matches(name, hints, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"`partialsgd train {recipe} --help` lists them"
        raise ValueError(f"{name} is not a setting of {recipe}; {hint}")
    converted = _convert(hints[name], value)
    if converted is _WRONG:
        raise ValueError(f"{name} must be {_describe(hints[name])}; got {value!r}")
    return converted


_WRONG = object()


def _convert(hint: Any, value: Any) -> Any:
    """Return the value as this type, or `_WRONG`. As on the command line, None is written "None"."""
    args = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        if value in (None, "None"):
            return None
        converted = (_convert(arg, value) for arg in args if arg is not NoneType)
        return next((result for result in converted if result is not _WRONG), _WRONG)
    if get_origin(hint) is Literal:
        return value if value in args else _WRONG
    if get_origin(hint) is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return _WRONG if any(type(item) is not args[0] for item in items) else tuple(items)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if type(value) is hint else _WRONG


def _describe(hint: Any) -> str:
    args = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join('"None"' if arg is NoneType else _describe(arg) for arg in args)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, args))
    if get_origin(hint) is tuple:
        return "a list of texts"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]


def _culprit(base: Settings, values: Values) -> str:
    """The name of the value that is refused by itself, for the error message."""
    for name, value in values.items():
        try:
            dataclasses.replace(base, **{name: value})
        except ValueError as error:
            return "" if str(error).startswith(name) else f"{name}: "
    return ""


def _toml_value(value: Any) -> str:
    """Write a value in TOML, whose strings are those of JSON except for one character."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str) or value is None:
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower()
