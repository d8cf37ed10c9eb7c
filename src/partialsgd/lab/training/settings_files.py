"""Settings in a file: TOML that a person writes, or the config.json of a run. The same names as on the command line."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.training.settings import Settings

Values: TypeAlias = dict[str, Any]
"""Settings by name: those that are said, the others being the preset's."""


def presets(recipe: str) -> Mapping[str, Settings]:
    """What the settings of a recipe can start from; the first is the default, and may be the only one."""
    known: Mapping[str, Settings] | None
    known = getattr(import_module(f"partialsgd.lab.recipes.{recipe}.settings"), "PRESETS", None)
    return known or {"": RECIPES[recipe]()}


def resolve(recipe: str, values: Mapping[str, Any]) -> Settings:
    """The settings that the values describe, over those of the preset that is among them."""
    checked = {name: _checked(recipe, name, value) for name, value in values.items()}
    known = presets(recipe)
    base = known[checked.pop("preset", next(iter(known)))]
    try:
        return dataclasses.replace(base, **checked)
    except ValueError as error:
        raise ValueError(f"{_culprit(base, checked)}{error}") from None


@cache
def types(recipe: str) -> Mapping[str, Any]:
    """The settings of a recipe, each with its type."""
    hints = get_type_hints(RECIPES[recipe])
    return {field.name: hints[field.name] for field in dataclasses.fields(RECIPES[recipe])}


def read(path: Path) -> tuple[str | None, Values]:
    """The recipe that a file names, if it does, and the values in it, with underscores in their names."""
    said = _json(path) if path.suffix == ".json" else _toml(path)
    recipe = said.pop("recipe", None)
    if recipe is not None and recipe not in RECIPES:
        raise ValueError(f"{path}: there is no recipe {recipe!r}; there are {', '.join(RECIPES)}")
    values = {name.replace("-", "_"): value for name, value in said.items()}
    if len(values) < len(said):
        raise ValueError(f"{path}: a setting is there twice, once with a dash and once with an underscore")
    return recipe, values


def as_toml(settings: Settings) -> str:
    """The settings as a file that `read` reads. What is None is left out, unless the preset has something there."""
    known = presets(settings.recipe)
    base = known[getattr(settings, "preset", next(iter(known)))]
    lines = [f"recipe = {_written(settings.recipe)}"]
    for name, value in sorted(dataclasses.asdict(settings).items(), key=lambda item: item[0] != "preset"):
        if value is not None or getattr(base, name) is not None:
            lines.append(f"{name} = {_written(value)}")
    return "\n".join(lines) + "\n"


def beside_the_paper(settings: Settings) -> str:
    """Comments for the same file: the paper's Table 4 and what the settings say, line by line."""
    if settings.recipe != "translation":
        return ""
    paper = import_module("partialsgd.lab.recipes.translation.paper")
    rows = [("the paper's Table 4", "paper", "here", ""), *paper.table_4(settings)]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    shown = ("  ".join(f"{cell:{width}}" for cell, width in zip(row, [*widths, 0], strict=True)) for row in rows)
    return "\n" + "".join(f"# {line.rstrip()}\n" for line in shown)


def _toml(path: Path) -> Values:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}") from error


def _json(path: Path) -> Values:
    """Of a run: where that run is does not belong to the settings of another."""
    try:
        said = json.loads(_text(path))
        return {"recipe": said["recipe"], **{name: x for name, x in said["settings"].items() if name != "out"}}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not the config.json of a run ({error!r})") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error})") from error


def _checked(recipe: str, name: str, value: Any) -> Any:
    """The value as the type of the setting that it is for."""
    hints = types(recipe)
    if name not in hints:
        close = get_close_matches(name, hints, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"`partialsgd train {recipe} --help` lists them"
        raise ValueError(f"{name} is not a setting of {recipe}; {hint}")
    found = _as(hints[name], value)
    if found is _WRONG:
        raise ValueError(f"{name} must be {_described(hints[name])}; got {value!r}")
    return found


_WRONG = object()


def _as(hint: Any, value: Any) -> Any:
    """The value as this type, or `_WRONG`. As on the command line, None is written "None" and one text is a list."""
    args = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        if value in (None, "None"):
            return None
        return next((found for arg in args if arg is not NoneType and (found := _as(arg, value)) is not _WRONG), _WRONG)
    if get_origin(hint) is Literal:
        return value if value in args else _WRONG
    if get_origin(hint) is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return _WRONG if any(type(item) is not args[0] for item in items) else tuple(items)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if type(value) is hint else _WRONG


def _described(hint: Any) -> str:
    args = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join('"None"' if arg is NoneType else _described(arg) for arg in args)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, args))
    if get_origin(hint) is tuple:
        return "a list of texts"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]


def _culprit(base: Settings, values: Values) -> str:
    """Which of the values alone is refused, so that the message names it."""
    for name, value in values.items():
        try:
            dataclasses.replace(base, **{name: value})
        except ValueError as error:
            return "" if str(error).startswith(name) else f"{name}: "
    return ""


def _written(value: Any) -> str:
    """A value in TOML, which has JSON's texts, but for one character."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, str) or value is None:
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value).lower()
