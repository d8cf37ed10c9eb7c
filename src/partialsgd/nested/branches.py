"""One level of a nested network as a branch of a step: its mask, and the switch that runs it."""

from __future__ import annotations

from partialsgd import perturbations
from partialsgd.masks import Mask
from partialsgd.method import Branch, Context
from partialsgd.nested.nested import Nested
from partialsgd.nested.specs import LowRank
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation


def branch_of(nested: Nested, level: str, *, weight: float = 1.0, taught: bool = False, pupil: bool = False) -> Branch:
    """p = what the level uses, δx = −(1 − p) ⊙ x, which is run as the small network that it is.

    A taught branch runs the whole network before its own, without a gradient, and finds its outputs in `g.teacher`;
    a pupil finds there what the step's first branch left, and others find nothing.
    """
    full = nested.levels[-1]
    made: list[tuple[Parameters, Mask]] = []  # here and not with the parameters, which may be copied without the method

    def used(parameters: Parameters) -> Mask:
        if not made or made[0][0] is not parameters:
            made[:] = [(parameters, nested.mask(level, parameters))]
        return made[0][1]

    def mask(context: Context) -> Mask:
        return used(context.parameters)

    at = perturbations.switch(lambda: nested.at(level, teacher=full if taught else None), used)
    base = perturbations.nowhere() if level == full else at

    def perturb(context: Context) -> Perturbation:
        if nested.level != full:
            raise RuntimeError(f"the step itself chooses levels: take it outside of nested.at({nested.level!r})")
        return base

    teacher = None if pupil else (lambda: nested.teacher) if taught else (lambda: None)
    return Branch(mask, perturb, level, weight, teacher, full, base, same_noise=draws_as_full(nested, level))


def draws_as_full(nested: Nested, level: str) -> bool:
    """Whether dropout has the same shapes at the level as at the full one: fewer ranks leave activations alone."""
    specs = nested.specs.get(level, ())
    return level == nested.levels[-1] or (bool(specs) and all(isinstance(spec, LowRank) for spec in specs))
