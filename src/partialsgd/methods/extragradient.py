"""p = 1, δx = −η ∇f(x): extragradient (Korpelevich 1976; Section 3.3); from the past: Popov 1980.

The paper prints δx = +η ∇f(x), which would go uphill (erratum E5); for minimisation it is downhill.
"""

from __future__ import annotations

from torch import Tensor

from partialsgd import perturbations
from partialsgd.method import Context, Method
from partialsgd.methods._shared.settings import require_nonnegative
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector


def extragradient(eta: float = 0.01, *, past: bool = False) -> Method:
    """Extragradient: take the gradient one step further downhill.

    `eta` is the length of that step; the theory wants eta < 1/(2L). Two backward passes a step; with `past=True`
    one: the step further is along the last step's gradient, and at t = 0, where there is none, it is left out.
    """
    require_nonnegative("eta", eta)
    name = f"extragradient(eta={eta}, past={past})"
    if eta == 0:
        return Method(name=name)
    if past:
        return Method(perturb=lambda context: _along_past(context, -eta), correct=_remember, name=name)
    return Method(perturb=lambda context: perturbations.along_gradient(context.gradient, -eta), name=name)


def _along_past(context: Context, factor: float) -> Perturbation:
    """δx = factor · the gradient of the level's last step."""
    stored = {name: context.memory.get(f"past.{context.level or ''}.{name}") for name in context.parameters}
    past = {name: g.to(context.parameters[name].device) for name, g in stored.items() if isinstance(g, Tensor)}
    return perturbations.along_gradient(Vector(past), factor)


def _remember(context: Context, gradient: Vector) -> Vector:
    for name in context.parameters:
        key = f"past.{context.level or ''}.{name}"
        if name in gradient:
            context.memory[key] = gradient[name].detach().clone()
        else:
            context.memory.pop(key, None)  # f did not depend on it: its gradient was zero
    return gradient
