"""A method by its text: `alternating`, `sam(rho=0.1)`, `compose(alternating, sam)`; names and literals, no code."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import partialsgd as ps
from partialsgd.lab.training import registry
from partialsgd.method import Method


def method_of(text: str) -> Method:
    """Make the method of the registry that the text names."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:  # a null character is the one or the other
        raise registry.unreadable(text) from error
    return _method(tree)


def _method(node: ast.expr) -> Method:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name) or any(keyword.arg is None for keyword in call.keywords):
        raise registry.unreadable(ast.unparse(node))
    name = call.func.id
    registry.require_name(name)
    make: Callable[..., Method] = getattr(ps.methods, name)
    args = [_value(arg) for arg in call.args]
    options = {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    try:
        return make(*args, **options)
    except (TypeError, AttributeError) as error:  # an option that is not there, or a text where a number belongs
        why = str(error).removeprefix(f"{name}() ")
        raise ValueError(f"the method {ast.unparse(node)!r}: {why}; it is {registry.signature(name)}") from error


def _value(node: ast.expr) -> Any:
    """A literal, or a method."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        if isinstance(node, (ast.Name, ast.Call)):
            return _method(node)
        raise ValueError(f"{ast.unparse(node)!r} is neither a number, a text, a list nor a method") from None
