"""Names, signatures and summaries of the methods, read from their files without importing torch."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in Path(__file__).parent.glob("[!_]*.py")))


@cache
def definition(name: str) -> ast.FunctionDef:
    """Parse the method's function, which is not run."""
    body = ast.parse(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")).body
    return next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)


@cache
def summaries() -> dict[str, str]:
    """Return the first line of each method's docstring."""
    return {name: (ast.get_docstring(definition(name)) or "").partition("\n")[0] for name in names()}


def settings_only(make: Callable[..., Result]) -> Callable[..., Result]:
    """Make a method that is called with a model raise an error that says who binds it."""

    @wraps(make)
    def checked(*args: object, **settings: object) -> Result:
        from torch import nn

        if any(isinstance(value, nn.Module) for value in (*args, *settings.values())):
            raise TypeError(f"{make.__name__}() takes its settings only; PartialSGD binds it to the model")
        return make(*args, **settings)

    return checked
