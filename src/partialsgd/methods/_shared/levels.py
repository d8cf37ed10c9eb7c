"""Settings by level, as the methods of nested networks take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from partialsgd.method import ScaleRule
from partialsgd.nested import Nested
from partialsgd.parameters import unwrap


def require_numbers(numbers: Mapping[str, float] | None, what: str) -> dict[str, float]:
    """Return the numbers by level, none of which may be negative."""
    by_level = dict(numbers or {})
    for level, value in by_level.items():
        if not value >= 0:
            raise ValueError(f"{what} of {level!r} must not be negative, got {value}")
    return by_level


def nested_in(model: nn.Module) -> Nested:
    """Find the nested model: the model itself, out of its wrappers, or the only one inside it."""
    outermost = [module for module in unwrap(model).modules() if isinstance(module, Nested)]
    inner = {module for nested in outermost for module in nested.model.modules()}
    found = [nested for nested in outermost if nested not in inner]
    if len(found) != 1:
        raise TypeError(
            f"the method trains the levels of one nested model, as ps.nest(model, …) returns it; "
            f"{type(unwrap(model)).__name__} has {len(found)}"
        )
    return found[0]


def require_levels(nested: Nested, levels: Iterable[str], what: str) -> None:
    for level in levels:
        if level not in nested.levels:
            raise ValueError(f"{what}: there is no level {level!r}; there are {', '.join(map(repr, nested.levels))}")


def scaled(factors: Mapping[str, float]) -> ScaleRule:
    """α of a level."""
    return lambda context: factors.get(context.level or "", 1.0)
