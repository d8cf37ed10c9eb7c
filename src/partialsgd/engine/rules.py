"""Lines 2 and 3 of Algorithm 1: a method's rules are asked, and what must wait for a gradient waits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar, final

from partialsgd.masks import Mask
from partialsgd.method import Branch, Context, Method, NeedsGradient, nothing
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector

Chosen = TypeVar("Chosen")


@final
@dataclass(frozen=True)
class Choice:
    """Lines 2 and 3, as far as they can be chosen: what waits for the gradient at x_t is None."""

    context: Context
    mask: Mask | None
    perturbation: Perturbation | None
    scale: float | None
    within: AbstractContextManager[object]

    @property
    def needs_gradient(self) -> bool:
        return self.mask is None or self.perturbation is None or self.scale is None

    @property
    def is_at_x(self) -> bool:
        """Whether the trained gradient is the gradient at x_t."""
        is_nowhere = self.perturbation is not None and self.perturbation.is_nowhere
        return is_nowhere and isinstance(self.within, nullcontext)

    def leaves(self, base: Perturbation) -> bool:
        """Whether the trained gradient is taken elsewhere than where the rules' gradient is."""
        return self.perturbation is None or bool(self.perturbation.touches) or self.perturbation.at is not base.at

    def without_gradient(self) -> Choice:
        """Chosen; the gradient that it was chosen by, and the perturbation that may hold it, are let go."""
        if self.context._gradient is None and self.perturbation is not None and self.perturbation.is_nowhere:
            return self
        return replace(self, context=replace(self.context, _gradient=None), perturbation=None)


def choose(method: Method, branch: Branch, context: Context) -> Choice:
    # What an unfinished attempt has remembered is forgotten, so that asking again is safe.
    context = replace(context, memory=dict(context.memory))
    mask = _attempt(branch.mask, context, "mask", Mask)
    if mask is not None:
        _require_same_model(mask, context.parameters)
    context = replace(context, _mask=None if mask is None else mask.simplified())
    perturbation = _attempt(branch.perturb, context, "perturb", Perturbation)
    scale = _attempt(method.scale, context, "scale", (int, float))
    within = _attempt(method.within, context, "within", AbstractContextManager)
    choice = Choice(context, context._mask, perturbation, scale, nullcontext() if within is None else within)
    if choice.needs_gradient and context._gradient is not None:
        raise RuntimeError(f"a rule of {method.name} asks for what is chosen after it: only later rules know the mask")
    return choice


def rescaled(method: Method, choice: Choice) -> Choice:
    """α once more, when the method's own meter has measured this step."""
    return replace(choice, scale=_attempt(method.scale, choice.context, "scale", (int, float)))


def project(method: Method, context: Context) -> Perturbation:
    """What x is to become after the update; asked before it, so that a wrong rule changes nothing."""
    chosen = _attempt(method.project, context, "project", Perturbation)
    if chosen is None:
        raise RuntimeError(f"the rule 'project' of {method.name} asks for a gradient, which is gone by then")
    return chosen


def forget(method: Method, context: Context) -> Mask | None:
    """Where the optimizer's state starts anew; None: nowhere, as most methods have it."""
    if method.forget is nothing:
        return None
    chosen = _attempt(method.forget, context, "forget", Mask)
    if chosen is None:
        raise RuntimeError(f"the rule 'forget' of {method.name} asks for a gradient, which is gone by then")
    _require_same_model(chosen, context.parameters)
    return chosen.simplified()


def correct(method: Method, context: Context, gradient: Vector) -> Vector:
    corrected = method.correct(context, gradient)
    if not isinstance(corrected, Vector):
        raise TypeError(f"the rule 'correct' returned {corrected!r}; it must return a Vector")
    return corrected


def _require_same_model(mask: Mask, parameters: Parameters) -> None:
    if mask.parameters is parameters:
        return
    shapes = all(entry.shape == parameters[name].shape for name, entry in mask.partial.items() if name in parameters)
    if mask.keys() != parameters.keys() or not shapes:
        raise ValueError("the mask is of another model; build it from context.parameters or from the model itself")


def _attempt(
    rule: Callable[[Context], Chosen], context: Context, name: str, kind: type | tuple[type, ...]
) -> Chosen | None:
    try:
        chosen = rule(context)
    except NeedsGradient:
        return None
    if not isinstance(chosen, kind):
        expected = kind.__name__ if isinstance(kind, type) else "number"
        raise TypeError(f"the rule {name!r} returned {chosen!r}; it must return a {expected}")
    return chosen
