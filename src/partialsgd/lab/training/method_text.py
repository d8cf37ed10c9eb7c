"""Methods written as text, such as `alternating`, `sam(rho=0.1)` or `compose(alternating, sam)`.

The text is parsed, never evaluated: it may hold names of methods and literals only. Listing the methods reads their
source files, so that `partialsgd methods` does not import torch.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import partialsgd as ps
from partialsgd import methods
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings
from partialsgd.methods._registry import definition

if TYPE_CHECKING:
    from partialsgd.method import Method


def make_method(settings: Settings) -> Method:
    """The method of the settings, before it is bound to a network."""
    if settings.distill is None:
        return parse_method(settings.method)
    return parse_method(settings.method, distill=settings.distill)


def parse_method(text: str, **more: Any) -> Method:
    """Make the method that the text describes, with `more` options."""
    if "\0" in text:  # a ValueError or a SyntaxError, depending on the Python version
        raise _unreadable(text)
    try:
        return _method(ast.parse(text.strip(), mode="eval").body, **more)
    except (SyntaxError, RecursionError, MemoryError) as error:  # the last two for thousands of signs
        raise _unreadable(text) from error


def _method(node: ast.expr, **more: Any) -> Method:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name) or any(keyword.arg is None for keyword in call.keywords):
        raise _unreadable(ast.unparse(node))
    name = call.func.id
    _require_name(name)
    make: Callable[..., Method] = getattr(ps.methods, name)
    args = [_value(arg) for arg in call.args]
    options = {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    try:
        return make(*args, **options, **more)
    except (TypeError, AttributeError) as error:  # an unknown option, or a text where a number belongs
        reason = str(error).removeprefix(f"{name}() ")
        raise ValueError(f"the method {ast.unparse(node)!r}: {reason}; its form is {signature(name)}") from error


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        if isinstance(node, (ast.Name, ast.Call)):
            return _method(node)
        raise ValueError(f"{ast.unparse(node)!r} must be a number, a text, a list or a method") from None


def _require_name(name: str) -> None:
    if name not in methods.NAMES:
        close = get_close_matches(name, methods.NAMES, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`partialsgd methods` lists them"
        raise WrongCall(f"there is no method {name!r}; {hint}")


def _unreadable(text: str) -> ValueError:
    return ValueError(f"the method {text[:80]!r} cannot be read; write a name, or name(option=value)")


def signature(name: str) -> str:
    """The form in which a method is written: `sam(rho=0.05, adaptive=False, interval=1)`."""
    arguments = definition(name).args
    required = len(arguments.args) - len(arguments.defaults)
    defaults = [*[None] * required, *arguments.defaults, *arguments.kw_defaults]
    options = zip([*arguments.args, *arguments.kwonlyargs], defaults, strict=True)
    texts = (each.arg if default is None else f"{each.arg}={ast.unparse(default)}" for each, default in options)
    return f"{name}({', '.join(texts)})"


def describe_method(name: str, width: int) -> str:
    """The signature and the documentation of one method."""
    _require_name(name)
    head = textwrap.fill(signature(name), width=width, subsequent_indent=" " * (len(name) + 1))
    return f"{head}\n\n{inspect.cleandoc(ast.get_docstring(definition(name)) or '')}"
