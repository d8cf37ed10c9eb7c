"""L of Assumption 1 at one point, by power iteration on the Hessian.

The theorem's L must hold everywhere along the run, so this is a lower bound of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from partialsgd._util.randomness import generator, key
from studies.constants.gradient_noise import Estimate, standard_error
from studies.constants.objective import Objective, inner


@final
@dataclass(frozen=True)
class Curvature:
    """The result of power iteration: the Hessian's eigenvalue of largest magnitude."""

    size: float
    """‖Hv‖ for a unit vector v, which never exceeds the largest |λ|."""
    sign: int
    """The sign of vᵀHv: −1 for negative curvature, 0 if H = 0."""
    residual: float
    """Some eigenvalue's magnitude differs from `size` by at most this."""
    spread: float
    """The standard error of `size` over the batches; nan for one batch."""
    products: int
    """The number of Hessian-vector products."""
    converged: bool
    """True if the residual is within the tolerance. A start orthogonal to the top eigenvector gives a smaller one."""

    @property
    def estimate(self) -> Estimate:
        """L with its error: the residual plus the standard error over the batches."""
        sign = f"; the eigenvalue is −{self.size:.3g}" if self.sign < 0 else ""
        state = "" if self.converged else "not converged, "
        note = f"a lower bound at this x{sign}; {state}residual {self.residual:.2g} after {self.products} products"
        if math.isnan(self.spread):
            return Estimate(self.size, self.residual, f"{note}, one batch")
        note = f"{note}, standard error {self.spread:.2g} over the batches"
        return Estimate(self.size, self.residual + self.spread, note)


def power_iteration(
    objective: Objective, *, tolerance: float = 1e-2, iterations: int = 100, seed: int = 0
) -> Curvature:
    """Iterate v ← Hv / ‖Hv‖ until the residual is at most `tolerance` times the eigenvalue; H = ∇²f over all batches.

    The residual is ‖Hv − ‖Hv‖ u‖ with u the vector before v. It also vanishes if +λ and −λ are both largest, in which
    case v does not converge.
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    if iterations < 2:
        raise ValueError(f"iterations must be at least 2, got {iterations}: the residual compares two products")
    before = v = _unit(_start(objective, seed))
    for k in range(1, iterations + 1):
        h, along = _product(objective, v, before)
        size = _norm(h)
        if not math.isfinite(size):
            raise ValueError(f"‖Hv‖ = {size}: a second derivative of the loss is not finite at this x, so it has no L")
        residual = _norm({name: h[name] - size * before[name] for name in h})
        sign = int(math.copysign(1, inner(v, h))) if size else 0
        if size == 0 or (k > 1 and (residual <= tolerance * size or k == iterations)):
            break
        before, v = v, _unit(h)
    return Curvature(size, sign, residual if size else 0.0, standard_error(along), k, residual <= tolerance * size)


def _product(
    objective: Objective, v: Mapping[str, Tensor], before: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[float]]:
    """Return Hv, and for each batch its contribution ⟨u, H_k v⟩ to the eigenvalue."""
    n, along = len(objective), []
    total = {name: torch.zeros_like(t) for name, t in v.items()}
    for k in range(n):
        h = objective.product(k, v)
        along.append(inner(before, h))
        for name, tensor in total.items():
            tensor.add_(h[name], alpha=1 / n)
    return total, along


def _start(objective: Objective, seed: int) -> dict[str, Tensor]:
    """Return a random vector, drawn on the CPU by (seed, name) so that it is the same for every device."""
    return {
        name: torch.randn(p.shape, generator=generator(key(seed, "curvature", name))).to(p)
        for name, p in objective.parameters.items()
    }


def _unit(v: Mapping[str, Tensor]) -> dict[str, Tensor]:
    norm = _norm(v)
    return {name: t / norm for name, t in v.items()}


def _norm(v: Mapping[str, Tensor]) -> float:
    return math.sqrt(inner(v, v))
