"""One level of a nested network as a branch of a step: its mask, and the switch that runs it."""

from __future__ import annotations

from collections.abc import Mapping

from partialsgd import perturbations
from partialsgd.masks import Mask
from partialsgd.nested import Nested
from partialsgd.perturbations import Perturbation
from partialsgd.rules import Branch, Context, ScaleRule


def branch_of(nested: Nested, level: str, *, weight: float = 1.0, taught: bool = False, pupil: bool = False) -> Branch:
    """p = what the level uses, δx = −(1 − p) ⊙ x, which is run as the small network that it is.

    A taught branch runs the whole network before its own, without a gradient, and finds its outputs in `g.teacher`;
    a pupil finds there what the step's first branch left, and others find nothing.
    """
    full = nested.levels[-1]

    def mask(context: Context) -> Mask:
        return context.parameters.once(("level", id(nested), level), lambda: nested.mask(level, context.parameters))

    def perturb(context: Context) -> Perturbation:
        if nested.level != full:
            raise RuntimeError(f"the step itself chooses levels: take it outside of nested.at({nested.level!r})")
        if level == full:
            return perturbations.nowhere()
        return perturbations.switch(lambda: nested.at(level, teacher=full if taught else None))

    teacher = None if pupil else (lambda: nested.teacher) if taught else (lambda: None)
    at_x = perturbations.switch(lambda: nested.at(full, teacher=full)) if taught else perturbations.nowhere()
    return Branch(mask, perturb, level, weight, teacher, at_x)


def known_levels(nested: Nested, levels: Mapping[str, float] | None, what: str) -> dict[str, float]:
    """Numbers by level; a level that the network does not have is refused, and so is a number below zero."""
    if not isinstance(nested, Nested):
        raise TypeError(f"the method needs a nested network: ps.nest(model, …) first; got {type(nested).__name__}")
    given = dict(levels or {})
    for level, value in given.items():
        if level not in nested.levels:
            raise ValueError(f"{what}: there is no level {level!r}; there are {', '.join(map(repr, nested.levels))}")
        if not value >= 0:
            raise ValueError(f"{what} of {level!r} must not be negative, got {value}")
    return given


def scaled(factors: Mapping[str, float]) -> ScaleRule:
    """α of a level."""
    return lambda context: factors.get(context.level or "", 1.0)
