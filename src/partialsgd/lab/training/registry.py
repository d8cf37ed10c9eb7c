"""The methods as text: what `partialsgd methods` shows and `--method` is checked against, without importing torch."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from functools import partial

from partialsgd import methods
from partialsgd.lab.training.errors import WrongCall
from partialsgd.methods._registry import definition


def require_name(name: str) -> None:
    if name not in methods.NAMES:
        close = get_close_matches(name, methods.NAMES, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`partialsgd methods` lists them"
        raise WrongCall(f"there is no method {name!r}; {hint}")


def require_method(text: str) -> None:
    """Refuse a text whose names of methods or options are not there; their values are for the method to judge."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:  # a null character is the one or the other
        raise unreadable(text) from error
    for name, options in _calls(tree):
        require_name(name)
        known = options_of(name)
        for option in options:
            if option not in known:
                raise ValueError(f"the method {name!r} has no option {option!r}; it is {signature(name)}")


def unreadable(text: str) -> ValueError:
    return ValueError(f"the method {text!r} cannot be read: write a name, or name(option=value)")


def options_of(name: str) -> dict[str, str | None]:
    """What a method can be told, each with its default as it is written; None where it must be told."""
    given = definition(name).args
    every = [*given.posonlyargs, *given.args]
    blanks: list[ast.expr | None] = [None] * (len(every) - len(given.defaults))
    pairs = [*zip(every, [*blanks, *given.defaults], strict=True)]
    pairs += zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return {arg.arg: None if value is None else ast.unparse(value) for arg, value in pairs}


def signature(name: str) -> str:
    """The method as it is written: `sam(rho=0.05, adaptive=False, interval=1)`."""
    shown = (option if default is None else f"{option}={default}" for option, default in options_of(name).items())
    return f"{name}({', '.join(shown)})"


def documentation(name: str) -> str:
    return inspect.cleandoc(ast.get_docstring(definition(name)) or "")


def listed(width: int) -> str:
    """Every method with its line."""
    margin = 2 + max(map(len, methods.SUMMARIES))
    wrap = partial(textwrap.fill, width=max(width, margin + 30), subsequent_indent=" " * margin)
    lines = [wrap(f"{name:{margin}}{summary}") for name, summary in methods.SUMMARIES.items()]
    return "\n".join([*lines, "", "What one can be told: partialsgd methods NAME"])


def told(name: str, width: int) -> str:
    """What one method does and can be told."""
    require_name(name)
    head = textwrap.fill(signature(name), width=width, subsequent_indent=" " * (len(name) + 1))
    return f"{head}\n\n{documentation(name)}"


def _calls(node: ast.expr) -> Iterator[tuple[str, list[str]]]:
    """The methods in a text, each with the options that it is given by name."""
    if isinstance(node, ast.Name):
        yield node.id, []
    elif isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or any(keyword.arg is None for keyword in node.keywords):
            raise unreadable(ast.unparse(node))
        yield node.func.id, [str(keyword.arg) for keyword in node.keywords]
        for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if isinstance(value, (ast.Name, ast.Call)):
                yield from _calls(value)
    else:
        raise unreadable(ast.unparse(node))
