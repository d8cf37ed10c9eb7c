"""One level of a nested network as a branch of a step: its mask, and the switch that runs it."""

from __future__ import annotations

from partialsgd import perturbations
from partialsgd.masks import Mask
from partialsgd.names import Parameters
from partialsgd.nested.family import Nested
from partialsgd.nested.specs import LowRank
from partialsgd.perturbations import Perturbation
from partialsgd.rules import Branch, Context


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
    return Branch(mask, perturb, level, weight, teacher, at_x, base, same_noise=draws_as_full(nested, level))


def draws_as_full(nested: Nested, level: str) -> bool:
    """Whether dropout has the same shapes at the level as at the full one: fewer ranks leave activations alone."""
    specs = nested.specs.get(level, ())
    return level == nested.levels[-1] or (bool(specs) and all(isinstance(spec, LowRank) for spec in specs))
