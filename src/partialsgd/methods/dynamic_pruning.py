"""p = 1, δx = −(1 − m) ⊙ x: dynamic pruning with feedback, DPF (Lin et al. 2020; named in Section 1).

m keeps the largest weights and is chosen anew every few steps. The dense weights behind it never stop moving, so what
was pruned too early comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from partialsgd import masks, perturbations
from partialsgd.method import Context, Method
from partialsgd.methods._shared import magnitudes
from partialsgd.methods._shared.magnitudes import Scope, Unit
from partialsgd.methods._shared.settings import as_patterns, require_count, require_steps
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
    magnitudes.require_sparsity(sparsity)
    magnitudes.require_scope(scope)
    magnitudes.require_unit(unit)
    require_count("every", every)
    require_steps("ramp", ramp, "prunes to the full sparsity at once")

    def perturb(context: Context) -> Perturbation:
        since = context.t - context.t % every
        share = cubic(sparsity, since, ramp)
        if share == 0:
            return perturbations.nowhere()
        chosen = magnitudes.remembered(
            context,
            since,
            lambda: magnitudes.kept(context.parameters, share, scope=scope, unit=unit, where=where),
        )
        return magnitudes.drop(masks.from_tensors(context.parameters, chosen, rest=True))

    patterns = where if where is None else as_patterns(where)
    settings = f"sparsity={sparsity}, every={every}, ramp={ramp}, scope={scope}, unit={unit}, where={patterns}"
    return Method(perturb=perturb, name=f"dynamic_pruning({settings})")


def cubic(sparsity: float, t: int, ramp: int) -> float:
    """s_t = s − s (1 − t / ramp)³ before `ramp`, s from there on."""
    return sparsity if t >= ramp else sparsity - sparsity * (1 - t / ramp) ** 3
