"""γ_t = α_t γ_base, α_t = ⟨p ⊙ G, p ⊙ G̃⟩ / ‖p ⊙ G̃‖² in [0, 1]: the step size of Theorem 1, as it is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from partialsgd.meters.criteria import latest
from partialsgd.meters.criteria_meter import CriteriaMeter, measured_name
from partialsgd.method import Branch, BranchesRule, Context, Method
from partialsgd.methods._shared.parts import bind_parts
from partialsgd.methods._shared.settings import require_count, require_method


def scaled_by_alpha(method: Method, *, every: int = 10) -> Method:
    """Scaled by α: a method's steps with the step size of the theorem, α γ, where α is measured.

    α is measured at every `every`-th step of each level, or of each mask of whole tensors, which takes the gradient
    at x as well; that step has it already, and so have those up to the next measurement. Where the two gradients
    point apart it is 0, and nothing moves. A scale that the method has of its own stays: the two are multiplied.
    """
    require_method("method", method)
    require_count("every", every)
    return bind_parts(lambda method: _scaled(method, every), method, name=f"scaled_by_alpha({method.name})")


def _scaled(method: Method, every: int) -> Method:
    if method.meter is not None:
        raise ValueError(f"{method.name} measures already, and a method has one meter; scale one that does not")
    if method.guard is not None:
        raise ValueError("scale the method and guard that: guarded(scaled_by_alpha(…), …)")

    def scale(context: Context) -> float:
        return method.scale(context) * alpha(context)

    return replace(
        method,
        scale=scale,
        meter=CriteriaMeter(every=every, groups={}, alerts=None),
        branches=None if method.branches is None else _one(method.branches, method.name),
        name=f"scaled_by_alpha({method.name}, every={every})",
    )


def alpha(context: Context) -> float:
    """The last measured α of this mask; 1 before the first, and where p ⊙ G̃ = 0 leaves nothing to scale."""
    found = latest(context.measured, measured_name(context, context.measured), "alpha")
    return 1.0 if found is None or math.isnan(found) else found


def _one(branches: BranchesRule, name: str) -> BranchesRule:
    def checked(context: Context) -> Sequence[Branch]:
        found = branches(context)
        if len(found) > 1:
            raise ValueError(f"{name} takes {len(found)} gradients in a step, and α is that of one")
        return found

    return checked
