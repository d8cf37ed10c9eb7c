"""Checks of a method's settings, with one wording for all methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from partialsgd.method import Method

Combine = Literal["sum", "mean"]


def require_one_of(name: str, value: object, choices: object) -> None:
    """Raise unless the value is one of a `Literal`."""
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}; got {value!r}")


def require_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value}; for no mask use methods.plain()")


def require_nonnegative(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} must not be negative, got {value}; 0 is plain training")


def require_count(name: str, value: int, least: int = 1) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def require_method(name: str, value: object) -> None:
    if not isinstance(value, Method):
        hint = "; call it: methods.sam()" if callable(value) else "; write methods.sam()"
        raise TypeError(f"{name} must be a Method, got {value!r}{hint}")


def as_patterns(where: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the patterns as a tuple; a string is one pattern."""
    return (where,) if isinstance(where, str) else where if where is None else tuple(where)
