"""Names, signatures and summaries of the methods, read from their files without importing torch."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

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
    """Make a method raise if it is called with a model, or with a number or a flag that is none.

    Numbers of numpy and torch become Python's: a draw and a checkpoint must not depend on where a number came from.
    """
    parameters = signature(make).parameters
    by_position = [name for name, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]

    def plain(name: str, value: object) -> object:
        kind = str(parameters[name].annotation).removesuffix(" | None") if name in parameters else ""
        if kind in ("int", "float") and value is not parameters[name].default:
            return plain_number(name, value)
        if kind == "bool" and not isinstance(value := without_array(value), bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")
        return value

    @wraps(make)
    def checked(*args: object, **settings: object) -> Result:
        from torch import nn

        if any(isinstance(value, nn.Module) for value in (*args, *settings.values())):
            raise TypeError(f"{make.__name__}() takes its settings only; PartialSGD binds it to the model")
        positional = [plain(name, value) for name, value in zip(by_position, args, strict=False)]
        rest = args[len(positional) :]
        return make(*positional, *rest, **{name: plain(name, value) for name, value in settings.items()})

    return checked


def plain_number(name: str, value: Any) -> float:
    """Return an int or a float of Python's; raise for anything else, truth values too."""
    value = without_array(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r} (a {type(value).__name__!r})")
    return value


def without_array(value: Any) -> Any:
    """Return the Python value of a scalar of numpy or torch, and anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value
