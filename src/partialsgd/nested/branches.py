"""One level of a nested model as a branch of a step: its mask, and the switch that runs it."""

from __future__ import annotations

from functools import partial

from partialsgd import perturbations
from partialsgd.masks import Mask
from partialsgd.method import Branch, Context
from partialsgd.nested.nested import Nested
from partialsgd.nested.specs import LowRank
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation


def branch_of(nested: Nested, level: str, *, weight: float = 1.0, taught: bool = False, pupil: bool = False) -> Branch:
    """Return the branch with p = the parameters of the level and δx = −(1 − p) ⊙ x, run as the small network.

    With `taught=True` the branch runs the full network first, without a gradient, and gives its outputs as
    `g.teacher`. With `pupil=True`, `g.teacher` has the outputs of the step's first branch. Otherwise it is None.
    """
    full = nested.levels[-1]
    cached: list[tuple[Parameters, Mask]] = []  # not on the parameters: they may be copied without the method

    def level_mask(parameters: Parameters) -> Mask:
        if not cached or cached[0][0] is not parameters:
            cached[:] = [(parameters, nested.mask(level, parameters))]
        return cached[0][1]

    def mask(context: Context) -> Mask:
        return level_mask(context.parameters)

    run_level = perturbations.switch(partial(nested.at, level, teacher=full if taught else None), level_mask)
    perturbation = perturbations.nowhere() if level == full else run_level

    def perturb(context: Context) -> Perturbation:
        if nested.level != full:
            raise RuntimeError(f"a step chooses the level itself: call it outside of nested.at({nested.level!r})")
        return perturbation

    teacher = None if pupil else (lambda: nested.teacher) if taught else (lambda: None)
    same_noise = _draws_like_full(nested, level)
    return Branch(mask, perturb, level, weight, teacher, full, perturbation, same_noise=same_noise)


def _draws_like_full(nested: Nested, level: str) -> bool:
    """True if dropout has the same shapes at the level as at full: lower ranks do not change activations."""
    specs = nested.specs.get(level, ())
    return level == nested.levels[-1] or (bool(specs) and all(isinstance(spec, LowRank) for spec in specs))
