"""The nested model that a method trains, and settings by level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from partialsgd.nested import Nested
from partialsgd.parameters import unwrap


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
    """Return the numbers by level, none of which may be negative."""
    by_level = dict(numbers or {})
    for level, value in by_level.items():
        if not value >= 0:
            raise ValueError(f"{setting} of {level!r} must not be negative, got {value}")
    return by_level
