"""Fields of dataclasses as options: typed, documented, in groups. tyro makes the command line of them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from partialsgd.lab.cli.groups import GROUPS
from partialsgd.lab.training import settings_files as files
from partialsgd.lab.training.settings import Settings

Field: TypeAlias = tuple[str, Any, Any]
"""As `make_dataclass` takes it: name, type, default."""


def the_tyro() -> Any:
    try:
        return import_module("tyro")
    except ImportError as error:
        raise ImportError("the command line needs tyro: pip install partialsgd[lab]") from error


def of_command(command: type) -> Iterator[Field]:
    """The command's own; what has no default is an argument in its place."""
    hints, texts = get_type_hints(command), documented(command)
    for field in dataclasses.fields(command):
        is_positional = field.default is dataclasses.MISSING or "positional" in field.metadata
        position = _place(field.name, hints[field.name]) if is_positional else ""
        yield _option(field.name, hints[field.name], texts[field.name], field.default, position)


def of_settings(settings: Settings) -> Iterator[Field]:
    """The settings with these values, one dataclass for each group."""
    hints, texts = files.types(settings.recipe), documented(type(settings))
    for group, names in GROUPS.items():
        options = [_option(name, hints[name], texts[name], getattr(settings, name)) for name in names if name in hints]
        if not group:
            yield from options
        elif options:
            made = dataclasses.make_dataclass(group, options, kw_only=True)
            made.__doc__ = ""
            yield group, made, dataclasses.field(default_factory=made)


def _option(name: str, hint: Any, text: str, default: Any, position: str = "") -> Field:
    tyro = the_tyro()
    said = tyro.conf.arg(
        help=text,
        metavar=position or _metavar(hint),
        prefix_name=False,
        help_behavior_hint=(lambda _: "") if default in (None, ()) or "[" in position else None,  # the text says it
    )
    markers = [tyro.conf.Positional] if position else []
    return name, Annotated[(hint, said, *markers)], dataclasses.field(default=default)


def _place(name: str, hint: Any) -> str:
    """RUN, or where there may be several RUN [RUN ...]."""
    word = name.upper()
    return f"{word} [{word} ...]" if get_origin(hint) is tuple else word


def _metavar(hint: Any) -> str | None:
    if get_origin(hint) is tuple:
        return "TEXT ..."
    inner = next((arg for arg in get_args(hint) if arg is not NoneType), hint) if NoneType in get_args(hint) else hint
    return {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}.get(inner)


def documented(kind: type) -> dict[str, str]:
    """The text below each field of a dataclass and of those that it inherits from."""
    texts: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if dataclasses.is_dataclass(one):
            for field, text in pairwise(_body(one)):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    texts[ast.unparse(field.target)] = " ".join(str(ast.literal_eval(text.value)).split())
    return texts


def _body(kind: type) -> list[ast.stmt]:
    """What is written in a class, which may itself stand in a function."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return next(node.body for node in tree.body if isinstance(node, ast.ClassDef))
