"""What a call says: the command with its options, and the settings of a recipe."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from partialsgd.lab.cli import fields
from partialsgd.lab.cli.pages import DEFAULT, examples, wrapped
from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.training import registry
from partialsgd.lab.training import settings_files as files
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings

Command = TypeVar("Command")


def parse(command: type[Command], name: str, argv: Sequence[str]) -> Command:
    """A command with its own options."""
    return command(**_read(fields.of_command(command), f"partialsgd {name}", argv, inspect.getdoc(command) or ""))


def parse_settings(command: type[Command], name: str, argv: Sequence[str]) -> tuple[Command, Settings]:
    """The command's own options and the settings: the command line's, over the file's, over the preset's."""
    recipe, base, rest = _start(argv)
    about = f"{inspect.getdoc(RECIPES[recipe])}\n\n{examples(command, name, recipe)}"
    own = list(fields.of_command(command))
    values = _read([*own, *fields.of_settings(base)], f"partialsgd {name} {recipe}", rest, about)
    return command(**{key: values.pop(key) for key, _, _ in own}), resolved(recipe, values)


def _read(options: Iterable[fields.Field], prog: str, argv: Sequence[str], about: str) -> dict[str, Any]:
    """The values of the options; --help and what is wrong end the process, as tyro does it."""
    made = dataclasses.make_dataclass("Options", options, kw_only=True)
    made.__doc__ = ""
    if {"-h", "--help"} & set(argv):
        print(wrapped(about))
    return _flat(fields.the_tyro().cli(made, prog=prog, args=list(argv), description=""))


def _flat(given: Any) -> dict[str, Any]:
    """The values of all groups together."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        values |= _flat(value) if dataclasses.is_dataclass(value) else {field.name: value}
    return values


def resolved(recipe: str, values: Mapping[str, Any]) -> Settings:
    """The settings; what is wrong with them names the option."""
    try:
        settings = files.resolve(recipe, values)
    except ValueError as error:
        first, _, rest = str(error).partition(" ")
        option = f"--{first.replace('_', '-')}" if first.rstrip(":") in values else first
        raise WrongCall(f"{option} {rest}") from error
    for name in ("method", "probe"):
        try:
            if (text := getattr(settings, name)) is not None:
                registry.require_method(text)
        except ValueError as error:
            raise WrongCall(f"--{name}: {error}") from error
    return settings


def _start(argv: Sequence[str]) -> tuple[str, Settings, list[str]]:
    """The recipe, the settings that the options begin with, and the arguments after the recipe's name."""
    named, rest = (argv[0], list(argv[1:])) if argv and not argv[0].startswith("-") else (None, list(argv))
    if named is not None and named not in RECIPES:
        raise WrongCall(f"there is no recipe {named!r}; there are {', '.join(RECIPES)}")
    config = _peek(rest, "config")
    recipe, values = _file(config)
    if None not in (named, recipe) and named != recipe:
        raise WrongCall(f"--config: {config} is for the recipe {recipe}, and {named} was named")
    found = named or recipe or DEFAULT
    preset = _peek(rest, "preset")
    if preset in files.presets(found):
        values["preset"] = preset
    try:
        return found, files.resolve(found, values), rest
    except ValueError as error:
        raise WrongCall(f"--config: {config}: {error}") from error


def _file(config: str | None) -> tuple[str | None, files.Values]:
    if config is None:
        return None, {}
    if not Path(config).is_file():
        raise WrongCall(f"--config: {config} does not exist, or is no file")
    try:
        return files.read(Path(config))
    except ValueError as error:
        raise WrongCall(f"--config: {error}") from error


def _peek(argv: Sequence[str], option: str) -> str | None:
    """The value of an option that decides on the defaults of the others, and so is read before them."""
    for k, arg in enumerate(argv):
        name, has_value, value = arg.partition("=")
        if name == f"--{option}":
            return value if has_value else next(iter(argv[k + 1 :]), None)
    return None
