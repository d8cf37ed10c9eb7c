"""Parse a call with tyro: a command's own options, and the settings of a recipe."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from partialsgd.lab.recipes import RECIPES, presets, require_recipe
from partialsgd.lab.training import settings_files
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings

Command = TypeVar("Command")

DEFAULT = next(iter(RECIPES))
"""The recipe of a call that names none."""


def parse(kind: type[Any], prog: str, argv: Sequence[str], about: str | None = None) -> Any:
    """Parse the options of a command, which its docstring is about. --help and wrong options end the process."""
    import tyro

    config: list[Any] = [
        tyro.conf.OmitArgPrefixes,
        tyro.conf.PositionalRequiredArgs,
        tyro.conf.PositionalMetavarFromFieldName,
    ]
    if getattr(kind, "all_positional", False):
        config.append(tyro.conf.Positional)
    if {"-h", "--help"} & set(argv):
        print(_wrap(about or inspect.getdoc(kind) or ""))
    return tyro.cli(kind, prog=prog, args=list(argv), description="", config=tuple(config))


def parse_settings(command: type[Command], name: str, argv: Sequence[str]) -> tuple[Command, Settings]:
    """Parse a command with a recipe's settings: the command line over the file of --config over the preset."""
    recipe, base, rest = _start(argv)
    options: list[Any] = []
    for kind in settings_files.groups(type(base)):
        values = {field.name: getattr(base, field.name) for field in dataclasses.fields(kind)}
        title = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__.removesuffix("Options")).lower()
        options.append((title, kind, dataclasses.field(default=kind(**values))))
    options_class = dataclasses.make_dataclass("Options", options, bases=(command,), frozen=True, kw_only=True)
    options_class.__doc__ = ""
    examples = (inspect.getdoc(command) or "").partition("\n\n")[2]
    about = f"{inspect.getdoc(RECIPES[recipe])}\n\n{examples}"
    parsed = parse(options_class, f"partialsgd {name} {recipe}", _without_short_names(command, rest), about)
    chosen = {key: value for title, _, _ in options for key, value in vars(getattr(parsed, title)).items()}
    return parsed, _resolve(recipe, chosen)


def _without_short_names(command: type[Any], argv: Sequence[str]) -> list[str]:
    """Replace the short names that a command has for some settings by those of the settings."""
    short_names: Mapping[str, str] = getattr(command, "short_names", {})
    split = (arg.partition("=") for arg in argv)
    return [short_names.get(name, name) + equals + value for name, equals, value in split]


def _resolve(recipe: str, values: Mapping[str, Any]) -> Settings:
    """Make the settings; an error names the option."""
    try:
        return settings_files.resolve(recipe, values)
    except ValueError as error:
        first, _, rest = str(error).partition(" ")
        option = f"--{first.replace('_', '-')}" if first.rstrip(":") in values else first
        raise WrongCall(f"{option} {rest}") from error


def _start(argv: Sequence[str]) -> tuple[str, Settings, list[str]]:
    """Find the recipe, the settings that --config and --preset give, and the arguments after the recipe's name."""
    named, rest = (argv[0], list(argv[1:])) if argv and not argv[0].startswith("-") else (None, list(argv))
    if named is not None:
        require_recipe(named)
    config, recipe_of_file, values = _peek(rest, "config"), None, dict[str, Any]()
    if config is not None:
        if not Path(config).is_file():
            raise WrongCall(f"--config: {config} does not exist, or is not a file")
        try:
            recipe_of_file, values = settings_files.read(Path(config))
        except ValueError as error:
            raise WrongCall(f"--config: {error}") from error
    if None not in (named, recipe_of_file) and named != recipe_of_file:
        raise WrongCall(f"--config: {config} is for the recipe {recipe_of_file}, but the call names {named}")
    recipe = named or recipe_of_file or DEFAULT
    preset = _peek(rest, "preset")
    if preset in presets(recipe):
        values["preset"] = preset
    try:
        return recipe, settings_files.resolve(recipe, values), rest
    except ValueError as error:
        raise WrongCall(f"--config: {config}: {error}") from error


def _peek(argv: Sequence[str], option: str) -> str | None:
    """The value of an option that decides the defaults of others, and is therefore read before them."""
    for k, arg in enumerate(argv):
        name, has_value, value = arg.partition("=")
        if name == f"--{option}":
            return value if has_value else next(iter(argv[k + 1 :]), None)
    return None


def show_choices(prog: str, about: str, kinds: Mapping[str, type]) -> None:
    """Print the help of a command that is followed by one of several names."""
    print(f"{_wrap(about)}\nusage: {prog} NAME …\n")
    print(in_columns({name: (inspect.getdoc(kind) or "").partition("\n")[0] for name, kind in kinds.items()}))


def in_columns(texts: Mapping[str, str]) -> str:
    """Names and a text beside each of them, wrapped to the width of the terminal."""
    margin = 2 + max(map(len, texts))
    width = max(shutil.get_terminal_size().columns, margin + 30)
    wrap = partial(textwrap.fill, width=width, subsequent_indent=" " * margin)
    return "\n".join(wrap(f"{name:{margin}}{text}") for name, text in texts.items())


def _wrap(text: str) -> str:
    """Wrap paragraphs to the width of the terminal, and indent examples, which begin with $."""
    width = min(shutil.get_terminal_size().columns, 100)
    parts = text.split("\n\n")
    shown = (textwrap.indent(p, "  ") if p.startswith("$") else textwrap.fill(p, width) for p in parts)
    return "\n\n".join(shown) + "\n"
