"""One level of a nested network as a branch of a step: its mask, and the switch that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partialsgd import perturbations
from partialsgd.masks import Mask
from partialsgd.names import Parameters
from partialsgd.nested import Nested
from partialsgd.perturbations import Perturbation
from partialsgd.rules import Branch, Context, ScaleRule


def branch_of(nested: Nested, level: str, *, weight: float = 1.0, taught: bool = False, pupil: bool = False) -> Branch:
    """p = what the level uses, δx = −(1 − p) ⊙ x, which is run as the small network that it is.

    A taught branch runs the whole network before its own, without a gradient, and finds its outputs in `g.teacher`;
    a pupil finds there what the step's first branch left, and others find nothing.
    """
    full = nested.levels[-1]
    at = perturbations.switch(lambda: nested.at(level, teacher=full if taught else None))
    base = perturbations.nowhere() if level == full else at
    made: list[tuple[Parameters, Mask]] = []  # here and not with the parameters, which may be copied without the method

    def mask(context: Context) -> Mask:
        if not made or made[0][0] is not context.parameters:
            made[:] = [(context.parameters, nested.mask(level, context.parameters))]
        return made[0][1]

    def perturb(context: Context) -> Perturbation:
        if nested.level != full:
            raise RuntimeError(f"the step itself chooses levels: take it outside of nested.at({nested.level!r})")
        return base

    teacher = None if pupil else (lambda: nested.teacher) if taught else (lambda: None)
    at_x = perturbations.switch(lambda: nested.at(full, teacher=full)) if taught else perturbations.nowhere()
    return Branch(mask, perturb, level, weight, teacher, at_x, base)


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
