"""p = 1, δx = −η ∇f(x): extragradient (Korpelevich 1976; Section 3.3).

The paper prints δx = +η ∇f(x), which would go uphill (erratum E5); for minimisation it is downhill.
"""

from __future__ import annotations

from partialsgd import perturbations
from partialsgd.methods.settings import require_nonnegative
from partialsgd.perturbations import Perturbation
from partialsgd.rules import Context, Method


def extragradient(eta: float = 0.01) -> Method:
    """Extragradient: take the gradient one step further downhill.

    `eta` is the length of that step; the theory wants eta < 1/(2L). Two backward passes a step.
    """
    require_nonnegative("eta", eta)

    def perturb(context: Context) -> Perturbation:
        return perturbations.along_gradient(context.gradient, -eta) if eta > 0 else perturbations.nowhere()

    return Method(perturb=perturb, name=f"extragradient(eta={eta})")
