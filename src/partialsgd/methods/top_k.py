"""p = top-k of |g|, δx = 0: meProp as the paper reads it (Sun et al. 2017; Section 3.3, erratum E1).

The mask depends on the stochastic gradient that it masks, which the theorem does not cover (E2).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.method import Context, Method
from partialsgd.methods._shared import pruning
from partialsgd.methods._shared.pruning import Scope
from partialsgd.methods._shared.settings import require_one_of, require_share


def top_k(keep: float = 0.1, *, scope: Scope = "global") -> Method:
    """Top-k: only the coordinates with the largest gradient move.

    k is the share `keep` of all coordinates, at least one, over the network or in each layer (a module's
    own parameters together). Exactly k are chosen, of equal ones the first; c_norm is at most √(d / k).
    """
    require_share("keep", keep)
    require_one_of("scope", scope, Scope)

    def mask(context: Context) -> Mask:
        if keep == 1:
            return masks.everything(context.parameters)
        return masks.from_tensors(context.parameters, largest(context.gradient, keep, scope))

    return Method(mask=mask, name=f"top_k(keep={keep}, scope={scope})")


def largest(scores: Mapping[str, Tensor], keep: float, scope: Scope) -> dict[str, Tensor]:
    """Return True at the share `keep` with the largest |score|, over all tensors or in each module: exactly k."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, score in scores.items():
        groups.setdefault(name.rpartition(".")[0] if scope == "layer" else "", {})[name] = score
    chosen: dict[str, Tensor] = {}
    for group in groups.values():
        chosen |= pruning.largest(group, max(1, round(keep * sum(score.numel() for score in group.values()))))
    return chosen
