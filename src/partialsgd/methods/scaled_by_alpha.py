"""γ_t = α_t γ_base, α_t = ⟨p ⊙ G, p ⊙ G̃⟩ / ‖p ⊙ G̃‖² in [0, 1]: the step size of Theorem 1, as it is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from partialsgd.meters.criteria import latest
from partialsgd.meters.criteria_meter import CriteriaMeter, measured_name
from partialsgd.method import Branch, Context, Method
from partialsgd.methods._shared.parts import bind_parts
from partialsgd.methods._shared.settings import require_count, require_method


def scaled_by_alpha(method: Method, *, every: int = 10) -> Method:
    """Scaled by α: a method's steps with the step size of the theorem, α γ, where α is measured.

    α is measured at every `every`-th step of each level, or of each mask of whole tensors, which takes the gradient
    at x as well; that step and those up to the next measurement are scaled by it. Where the two gradients have a
    negative inner product it is 0, and nothing moves. A scale of the method's own is multiplied with it.
    """
    require_method("method", method)
    require_count("every", every)
    return bind_parts(lambda method: _scaled(method, every), method, name=f"scaled_by_alpha({method.name})")


def _scaled(method: Method, every: int) -> Method:
    if method.meter is not None:
        raise ValueError(f"{method.name} measures already, and a method has one meter; scale a method without")
    if method.guard is not None:
        raise ValueError("scale the method and guard that: guarded(scaled_by_alpha(…), …)")

    def one_branch(context: Context) -> Sequence[Branch]:
        branches = method.branches_at(context)
        if len(branches) > 1:
            raise ValueError(f"{method.name} takes {len(branches)} gradients in a step, and α is that of one")
        return branches

    return replace(
        method,
        scale=lambda context: method.scale(context) * alpha(context),
        meter=CriteriaMeter(every=every, groups={}, alerts=None),
        branches=None if method.branches is None else one_branch,
        name=f"scaled_by_alpha({method.name}, every={every})",
    )


def alpha(context: Context) -> float:
    """Return the last measured α of this mask; 1 before the first, and where p ⊙ G̃ = 0 leaves nothing to scale."""
    measured = latest(context.measured, measured_name(context, context.measured), "alpha")
    return 1.0 if measured is None or math.isnan(measured) else measured
