"""The text above the options: what a command does, and examples of it."""

from __future__ import annotations

import inspect
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from functools import reduce
from operator import or_
from typing import Annotated, Any

from partialsgd.lab.cli.fields import the_tyro
from partialsgd.lab.recipes import RECIPES

DEFAULT = "translation"
"""The recipe where none is named."""


def show_choices(prog: str, about: str, kinds: Mapping[str, type], default: str | None = None) -> None:
    """The help of a command that is followed by one of several names."""
    tyro = the_tyro()

    def choice(name: str, kind: type) -> Any:
        text = (inspect.getdoc(kind) or "").partition("\n")[0]
        return Annotated[kind, tyro.conf.subcommand(name, description=text, is_default=name == default)]

    every = reduce(or_, (choice(name, kind) for name, kind in kinds.items()))
    page = io.TextIOWrapper(io.BytesIO(), encoding=getattr(sys.stdout, "encoding", None) or "utf-8")
    with suppress(SystemExit), redirect_stdout(page):
        tyro.cli(every, prog=prog, args=["--help"], description="")
    page.seek(0)
    print(wrapped(about))
    print(re.sub(r"(usage: .*)\{.*\}", r"\1NAME …", page.read()), end="")  # all of them are listed below it


def examples(command: type, name: str, recipe: str) -> str:
    """What is said of a command after its first line, with the examples of one recipe."""

    def is_of_another(line: str) -> bool:
        called = re.match(rf"\$ partialsgd {name} ?(\w*)", line)
        return called is not None and (called[1] if called[1] in RECIPES else DEFAULT) != recipe

    lines = (inspect.getdoc(command) or "").partition("\n\n")[2].split("\n")
    return "\n".join(line for line in lines if not is_of_another(line))


def wrapped(text: str) -> str:
    """Paragraphs to the width of the terminal, examples indented: tyro would make a paragraph of them."""
    width = min(shutil.get_terminal_size().columns, 100)
    parts = text.split("\n\n")
    shown = (textwrap.indent(p, "  ") if p.startswith("$") else textwrap.fill(p, width) for p in parts)
    return "\n\n".join(shown) + "\n"
