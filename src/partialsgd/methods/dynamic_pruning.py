"""p = 1, δx = −(1 − m) ⊙ x: dynamic pruning with feedback, DPF (Lin et al. 2020; named in Section 1).

m keeps the largest weights and is chosen anew every few steps. The dense weights behind it never stop moving, so what
was pruned too early comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from partialsgd import perturbations
from partialsgd.method import Context, Method
from partialsgd.methods._shared.pruning import Pruning, Scope, Unit, chosen_at, drop, require_sparsity
from partialsgd.methods._shared.settings import as_patterns, require_count
from partialsgd.perturbations import Perturbation


def dynamic_pruning(
    sparsity: float = 0.9,
    *,
    every: int = 16,
    ramp: int = 0,
    scope: Scope = "global",
    unit: Unit = "weights",
    where: Sequence[str] | None = None,
) -> Method:
    """Dynamic pruning (DPF): the gradient of the pruned network moves the dense one.

    The share `sparsity` with the smallest magnitude is pruned, chosen anew at every `every`-th step; over the first
    `ramp` steps that share grows from 0 along a cubic curve. `scope="layer"` compares within each tensor,
    `unit="rows"` prunes whole rows (output units) by their norm. By default every trainable parameter with two or
    more dimensions is pruned; `sgd.extract()` is the pruned network.
    """
    require_sparsity(sparsity)
    require_count("every", every)
    require_count("ramp", ramp, least=0)
    pruning = Pruning(scope, unit, as_patterns(where))

    def perturb(context: Context) -> Perturbation:
        since = context.t - context.t % every
        share = cubic(sparsity, since, ramp)
        if share == 0:
            return perturbations.nowhere()
        return drop(chosen_at(context, since, lambda: pruning.keep(context.parameters, share)))

    settings = f"sparsity={sparsity}, every={every}, ramp={ramp}, scope={scope}, unit={unit}, where={pruning.where}"
    return Method(perturb=perturb, name=f"dynamic_pruning({settings})")


def cubic(sparsity: float, t: int, ramp: int) -> float:
    """s_t = s − s (1 − t / ramp)³ before `ramp`, s from there on."""
    return sparsity if t >= ramp else sparsity - sparsity * (1 - t / ramp) ** 3
