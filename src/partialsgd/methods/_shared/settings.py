"""What the settings of a method must be, said in one way."""

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


def require_count(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def require_steps(name: str, value: int, zero: str) -> None:
    """A number of steps, which may be none."""
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number that is not negative, got {value!r}; 0 {zero}")


def require_method(name: str, value: object) -> None:
    if not isinstance(value, Method):
        hint = "; call it: methods.sam()" if callable(value) else "; write methods.sam()"
        raise TypeError(f"{name} must be a Method, got {value!r}{hint}")


def as_patterns(where: Sequence[str]) -> tuple[str, ...]:
    """One pattern given as a string is one pattern."""
    return (where,) if isinstance(where, str) else tuple(where)
