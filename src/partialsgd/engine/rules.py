"""Lines 2 and 3 of Algorithm 1: ask the method's rules for the mask and the perturbation of one branch of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar, final

from partialsgd import method
from partialsgd.masks import Mask
from partialsgd.method import Branch, Context, Guard, Method, NeedsGradient
from partialsgd.parameters import Parameters
from partialsgd.perturbations import NOWHERE, Perturbation
from partialsgd.vectors import Vector

T = TypeVar("T")


@final
@dataclass
class BranchPlan:
    """The mask, perturbation and scale of one branch of a step. One that needs the gradient at x_t is None before."""

    branch: Branch
    context: Context
    mask: Mask | None
    perturbation: Perturbation | None
    scale: float | None
    needs_gradient: bool
    first_within: AbstractContextManager[object] | None
    """The context manager of the rule `within`; None if that is the identity."""
    within_rule: Callable[[Context], AbstractContextManager[object]]
    reads_parts: bool = False
    """A rule reads the gradients of the micro-batches one by one."""

    @property
    def is_at_x(self) -> bool:
        """True if the trained gradient is the gradient at x_t."""
        return self.perturbation is not None and self.perturbation.is_nowhere and self.first_within is None

    @property
    def is_plain(self) -> bool:
        """True if p = 1 and δx = 0, so that both gradients of a pair are the trained one."""
        return self.is_at_x and self.mask is not None and self.mask.is_everything

    @property
    def leaves_base(self) -> bool:
        """True if the trained gradient is taken elsewhere than the gradient that the rules read."""
        perturbation = self.perturbation
        return perturbation is None or bool(perturbation.touches) or perturbation.at is not self.branch.base.at

    @property
    def within(self) -> Callable[[], AbstractContextManager[object]] | None:
        """Makes the context of the trained pass, anew for each micro-batch: many context managers can be entered
        only once."""
        if self.first_within is None:
            return None
        unused, rule, context = [self.first_within], self.within_rule, self.context.with_gradient(None)

        def make() -> AbstractContextManager[object]:
            return unused.pop() if unused else ask(rule, context, "within", AbstractContextManager) or nullcontext()

        return make

    def release_gradient(self) -> None:
        """Drop the gradient at x_t, and the perturbation that may hold it: the trained pass needs the memory."""
        if self.context.has_gradient:
            self.context, self.perturbation = self.context.with_gradient(None), None
        elif not self.is_at_x:
            self.perturbation = None


def choose(rules: Method, branch: Branch, context: Context, all_ones: Mask) -> BranchPlan:
    """Ask for mask, perturbation and scale, in this order. Rules that are the identity are not called: p is then
    `all_ones`, the mask of the model in which everything moves."""
    # The rules write into a copy of the memory, so that they can be asked again.
    context = replace(context, memory=dict(context.memory))
    missing: list[bool] = []  # not the errors: they refer to this frame, a cycle that would keep the gradients
    is_unmasked = branch.mask is method.everything
    mask = all_ones if is_unmasked else ask(branch.mask, context, "mask", Mask, missing)
    if mask is not None:
        _require_same_model(mask, context.parameters)
        mask = mask.simplified() if mask.partial else mask
        context = context.with_mask(mask)
    is_still = branch.perturb is method.nowhere
    perturbation = NOWHERE if is_still else ask(branch.perturb, context, "perturb", Perturbation, missing)
    scale = 1.0 if rules.scale is method.unscaled else ask(rules.scale, context, "scale", (int, float), missing)
    is_direct = rules.within is method.directly
    within_answer = None if is_direct else ask(rules.within, context, "within", AbstractContextManager)
    within = None if isinstance(within_answer, nullcontext) else within_answer
    needs_gradient = mask is None or perturbation is None or scale is None
    reads_parts = any(missing)
    if needs_gradient and context.has_gradient and reads_parts:
        raise RuntimeError(
            f"a rule of {rules.name} reads context.gradients after another has asked for context.gradient; read "
            "context.gradients first, or only"
        )
    if needs_gradient and context.has_gradient:
        raise RuntimeError(f"a rule of {rules.name} reads context.mask before the mask is chosen; only later rules may")
    if not (is_direct or needs_gradient or context.has_gradient) and within_answer is None:
        raise RuntimeError(
            f"the rule 'within' of {rules.name} reads context.gradient, which is not known before the pass; "
            "read context.mask or context.memory"
        )
    return BranchPlan(branch, context, mask, perturbation, scale, needs_gradient, within, rules.within, reads_parts)


def narrow(rules: Method, context: Context, gradients: Sequence[Vector]) -> Mask:
    """The union of the branches' masks, narrowed by the rule `mask`, which may read their gradients."""
    chosen = _ask_last(rules, rules.mask, context.with_gradients(gradients), "mask", Mask)
    _require_same_model(chosen, context.parameters)
    return (context.mask & chosen).simplified()


def project(rules: Method, context: Context) -> Perturbation:
    """The change of x after the update; asked for before it, so that a wrong rule changes nothing."""
    if rules.project is method.nowhere:
        return NOWHERE
    return _ask_last(rules, rules.project, context, "project", Perturbation)


def forget(rules: Method, context: Context) -> Mask | None:
    """The coordinates whose optimizer state is reset; None for none."""
    if rules.forget is method.nothing:
        return None
    chosen = _ask_last(rules, rules.forget, context, "forget", Mask)
    _require_same_model(chosen, context.parameters)
    return chosen.simplified()


def correct(rules: Method, context: Context, gradient: Vector) -> Vector:
    """g plus what the method remembers of earlier gradients."""
    corrected = rules.correct(context, gradient)
    if not isinstance(corrected, Vector):
        raise TypeError(f"the rule 'correct' returned {corrected!r}; it must return a Vector")
    return corrected


def under_guard(
    rules: Method, branches: Sequence[Branch], context: Context
) -> tuple[Method, Sequence[Branch], Guard | None]:
    """Return the method that takes this step, its branches, and the guard if it judges the step.

    A guard that is not due, but has refused before, makes it a step of the fallback.
    """
    guard = rules.guard
    if guard is None:
        return rules, branches, None
    if len(branches) > 1:
        raise ValueError(f"{rules.name}: a guard judges one gradient, and this step takes {len(branches)}")
    of_level = replace(context, level=branches[0].level)  # with the same memory
    if guard.count_and_check_due(of_level):
        return rules, branches, guard
    if guard.has_refused(of_level):
        return guard.fallback, guard.fallback.branches_at(context), None
    return rules, branches, None


def perturbation_of_level(rules: Method, context: Context, all_ones: Mask) -> Perturbation:
    """Return δx_t of the context's level, or of the first branch if it has none; no batch is at hand for a gradient."""
    level = context.level
    branches = enumerate(rules.branches_at(context))
    number, branch = next(((n, b) for n, b in branches if level in (None, b.level)), (0, None))
    if branch is None:
        raise ValueError(f"{rules.name} has no level {level!r} at t = {context.t}")
    plan = choose(rules, branch, replace(context, branch=number, level=branch.level), all_ones)
    if plan.perturbation is None:
        raise RuntimeError(
            f"{rules.name} perturbs by a gradient, and perturbed() and extract() have no batch to take it on"
        )
    return plan.perturbation


def _require_same_model(mask: Mask, parameters: Parameters) -> None:
    if mask.parameters is parameters:
        return
    shapes = all(entry.shape == parameters[name].shape for name, entry in mask.partial.items() if name in parameters)
    if mask.keys() != parameters.keys() or not shapes:
        raise ValueError("the mask is of another model; build it from context.parameters or from the model itself")


def _ask_last(rules: Method, rule: Callable[[Context], T], context: Context, name: str, kind: type) -> T:
    chosen = ask(rule, context, name, kind)
    if chosen is None:
        raise RuntimeError(f"the rule {name!r} of {rules.name} reads context.gradient, which is gone by then")
    return chosen


def ask(
    rule: Callable[[Context], T],
    context: Context,
    name: str,
    kind: type | tuple[type, ...],
    missing: list[bool] | None = None,
) -> T | None:
    """Call a rule and check its answer; None if it needs the gradient at x_t, which is not known yet.

    `missing` then gets True if the rule needs the gradients of the micro-batches one by one.
    """
    try:
        answer = rule(context)
    except NeedsGradient as error:
        if missing is not None:
            missing.append(error.parts)
        return None
    if not isinstance(answer, kind):
        expected = kind.__name__ if isinstance(kind, type) else "number"
        raise TypeError(f"the rule {name!r} returned {answer!r}; it must return a {expected}")
    return answer
