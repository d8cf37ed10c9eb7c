"""Checks of a method's settings, with one wording for all methods, and the nested model that it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import nn

from partialsgd.method import Method
from partialsgd.methods._registry import without_array
from partialsgd.nested import Nested
from partialsgd.parameters import unwrap

Combine = Literal["sum", "mean"]
LARGEST = torch.finfo(torch.float32).max
"""A larger factor makes a gradient in single precision infinite."""


def require_one_of(name: str, value: object, choices: object) -> None:
    """Raise unless the value is one of a `Literal`."""
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}; got {value!r}")


def require_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value}; 1 is plain training")


def require_nonnegative(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} must not be negative, got {value}; 0 is plain training")
    if value > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST:.2g}, got {value}")


def require_count(name: str, value: int, least: int = 1) -> None:
    if not isinstance(value, int) or not least <= value < 2**63:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def require_method(name: str, value: object) -> None:
    if not isinstance(value, Method):
        hint = "; call it: methods.sam()" if callable(value) else "; write methods.sam()"
        raise TypeError(f"{name} must be a Method, got {value!r}{hint}")


def as_patterns(where: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the patterns as a tuple; a string is one pattern."""
    return (where,) if isinstance(where, str) else where if where is None else tuple(where)


def nested_in(model: nn.Module) -> Nested:
    """Find the nested model: the model itself, out of its wrappers, or the only one inside it."""
    candidates = [module for module in unwrap(model).modules() if isinstance(module, Nested)]
    inner = {module for nested in candidates for module in nested.model.modules()}
    outermost = [nested for nested in candidates if nested not in inner]
    if len(outermost) != 1:
        raise TypeError(
            "the method trains the levels of one nested model, as ps.nest(model, …) returns it; "
            f"{type(unwrap(model)).__name__} has {len(outermost)}"
        )
    return outermost[0]


def require_levels(nested: Nested, levels: Iterable[str], setting: str) -> None:
    for level in levels:
        if level not in nested.levels:
            raise ValueError(f"{setting}: there is no level {level!r}; there are {', '.join(map(repr, nested.levels))}")


def require_numbers(numbers: Mapping[str, float] | None, setting: str) -> dict[str, float]:
    """Return the numbers by level as Python's; none may be negative, or too large for a step in single precision."""
    if not isinstance(numbers, Mapping | None):
        raise TypeError(f"{setting} must have a number for each level, such as {{'core': 0.5}}; got {numbers!r}")
    by_level = {level: without_array(value) for level, value in (numbers or {}).items()}
    for level, value in by_level.items():
        if isinstance(value, bool | str) or not 0 <= value <= LARGEST:
            raise ValueError(f"{setting} of {level!r} must be a number from 0 to {LARGEST:.2g}, got {value}")
    return by_level
