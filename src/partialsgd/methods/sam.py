"""p = 1, δx = +ρ g/‖g‖: sharpness-aware minimisation (Foret et al. 2021); adaptive: Kwon et al. 2021."""

from __future__ import annotations

import torch

from partialsgd import perturbations
from partialsgd._util import shards
from partialsgd.method import Context, Method
from partialsgd.methods._shared.settings import require_count, require_nonnegative
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation
from partialsgd.vectors import Vector


def sam(rho: float = 0.05, *, adaptive: bool = False, interval: int = 1) -> Method:
    """Sharpness-aware minimisation: take the gradient at the worst point nearby.

    `rho` is the distance to that point. `adaptive=True` measures it relative to each weight,
    δx = ρ x² g / ‖|x| g‖, and wants a rho about ten times larger. Two backward passes a step. With `interval=n`
    that is every n-th step of each level, beginning with the first; the others are plain.
    """
    require_nonnegative("rho", rho)
    require_count("interval", interval)
    name = f"sam(rho={rho}, adaptive={adaptive}, interval={interval})"
    if rho == 0:
        return Method(name=name)

    def perturb(context: Context) -> Perturbation:
        if interval > 1 and not context.count_and_check_due("sam", interval):
            return perturbations.nowhere()
        if adaptive:
            return _adaptive(context.parameters, context.gradient, rho)
        return perturbations.along_unit_gradient(context.gradient, rho)

    return Method(perturb=perturb, name=name)


def _adaptive(parameters: Parameters, gradient: Vector, rho: float) -> Perturbation:
    with torch.no_grad():
        products = (shards.local(parameters[name]) * shards.local(g) for name, g in gradient.items())
        weighted = [product.norm() for product in products]  # ‖|x| g‖, one tensor at a time
        norm = torch.stack(weighted).norm().double() if weighted else torch.zeros(())
        if parameters.is_sharded and weighted:
            squares = torch.stack(weighted).double().square()
            norm = shards.add_up(squares, list(gradient.values())).sum().sqrt()
    if norm.device.type == "cpu" and norm == 0:  # elsewhere than on a CPU, to ask would be to wait
        return perturbations.nowhere()
    factor = torch.where(norm == 0, 0.0, rho / norm)  # δx = 0 where there is no direction

    def move(parameters: Parameters) -> None:
        for name, g in gradient.items():
            x = shards.local(parameters[name])
            x.addcmul_(x * x * factor.to(x), shards.local(g))

    return perturbations.function(tuple(gradient), move)
