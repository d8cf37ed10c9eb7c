"""Settings by level, as the methods of nested networks take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partialsgd.method import ScaleRule
from partialsgd.nested import Nested


def numbers_of(nested: Nested, numbers: Mapping[str, float] | None, what: str) -> dict[str, float]:
    """Numbers by level; a level that the network does not have is refused, and so is a number below zero."""
    given = dict(numbers or {})
    require_levels(nested, list(given), what)
    for level, value in given.items():
        if not value >= 0:
            raise ValueError(f"{what} of {level!r} must not be negative, got {value}")
    return given


def require_levels(nested: Nested, levels: Sequence[str], what: str) -> None:
    if isinstance(levels, str):
        raise TypeError(f"{what} must be a list of levels, got the string {levels!r}; write [{levels!r}]")
    for level in levels:
        if level not in nested.levels:
            raise ValueError(f"{what}: there is no level {level!r}; there are {', '.join(map(repr, nested.levels))}")


def scaled(factors: Mapping[str, float]) -> ScaleRule:
    """α of a level."""
    return lambda context: factors.get(context.level or "", 1.0)
