"""A method by its text: `alternating`, `sam(rho=0.1)`, `compose(alternating, sam)`; names and literals, no code."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import partialsgd as ps
from partialsgd.nested import Nested
from partialsgd.rules import Method

_NETWORKS = ("nested", "model")  # the parameters of a method that are the network itself


def method_of(text: str, network: Nested) -> Method:
    """The method of the registry that the text names, made for this network, which it is given where it needs one."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"the method {text!r} cannot be read: write a name, or name(option=value)") from error
    return _method(tree, network)


def _method(node: ast.expr, network: Nested) -> Method:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name) or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError(f"the method {ast.unparse(node)!r} cannot be read: write a name, or name(option=value)")
    make = _registered(call.func.id)
    args = [_value(arg, network) for arg in call.args]
    options = {str(keyword.arg): _value(keyword.value, network) for keyword in call.keywords}
    signature = inspect.signature(make)
    if next(iter(signature.parameters), None) in _NETWORKS:
        args = [network, *args]
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        shown = ", ".join(str(p) for p in signature.parameters.values() if p.name not in _NETWORKS)
        raise ValueError(f"the method {ast.unparse(node)!r}: {error}; it is {call.func.id}({shown})") from error
    made: Method = make(*args, **options)
    return made


def _registered(name: str) -> Callable[..., Method]:
    if name not in ps.methods.SUMMARIES:
        close = get_close_matches(name, ps.methods.SUMMARIES, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "`partialsgd methods` lists them"
        raise ValueError(f"there is no method {name!r}; {hint}")
    found: Callable[..., Method] = getattr(ps.methods, name)
    return found


def _value(node: ast.expr, network: Nested) -> Any:
    """A literal, or a method."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        if isinstance(node, (ast.Name, ast.Call)):
            return _method(node, network)
        raise ValueError(f"{ast.unparse(node)!r} is neither a number, a text, a list nor a method") from None
