"""p = m, δx = −(1 − m) ⊙ x, one nested m for each sparsity: dynamic sparsity networks (Wu et al. 2021; Section 2).

The levels take turns, or are accumulated in one step, which is then not an instance of Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from partialsgd import perturbations
from partialsgd.masks import Mask
from partialsgd.method import Branch, Context, MaskRule, Method
from partialsgd.methods._registry import plain_number
from partialsgd.methods._shared.pruning import Pruning, Scope, chosen_at
from partialsgd.methods._shared.settings import Combine, as_patterns, require_count, require_one_of
from partialsgd.parameters import Parameters

WHOLE = "full"


def dynamic_sparsity(
    levels: Sequence[float] = (0.5, 0.9),
    *,
    every: int = 16,
    scope: Scope = "global",
    where: Sequence[str] | None = None,
    accumulate: bool = False,
    combine: Combine = "sum",
) -> Method:
    """Dynamic sparsity: one network trained at several sparsities, each inside the one before.

    Step by step the whole network ("full") is trained, then each of `levels`, which are shares of weights that are
    pruned and are named like "0.9"; with `accumulate=True` all of them in every step, their gradients combined by
    `combine`. A level keeps the largest weights, chosen anew at every `every`-th step and, as in `dynamic_pruning`,
    over the network or in each tensor. `sgd.extract("0.9")` is a level, `with sgd.perturbed("0.9"):` runs it.
    """
    sparsities = sorted(plain_number("levels", level) for level in levels)
    for sparsity in sparsities:
        if not 0 < sparsity < 1:
            raise ValueError(f"a level is a sparsity in (0, 1), got {sparsity}; the whole network is always trained")
    if len(set(sparsities)) < len(sparsities) or len(sparsities) > 255:
        raise ValueError(f"the levels must be different from each other and at most 255, got {sparsities}")
    require_count("every", every)
    require_one_of("combine", combine, Combine)
    pruning = Pruning(scope, where=as_patterns(where))

    def mask_of(index: int) -> MaskRule:
        def mask(context: Context) -> Mask:
            since = context.t - context.t % every
            # Also in a step of the whole network: a choice that is due is made when it is due.
            return chosen_at(context, since, lambda: count_levels(pruning, context.parameters, sparsities), level=index)

        return mask

    names = [WHOLE, *map(str, sparsities)]
    branch_by_level = {
        name: Branch(mask_of(index), lambda context: perturbations.drop_outside(context.mask), level=name)
        for index, name in enumerate(names)
    }

    def branches(context: Context) -> list[Branch]:
        if context.level is not None and context.level not in branch_by_level:
            raise ValueError(f"there is no level {context.level!r}; there are {', '.join(map(repr, names))}")
        if context.level is None and accumulate:
            return list(branch_by_level.values())
        return [branch_by_level[context.level or names[context.t % len(names)]]]

    settings = f"levels={sparsities}, every={every}, scope={scope}, where={pruning.where}"
    name = f"dynamic_sparsity({settings}, accumulate={accumulate}, combine={combine})"
    return Method(branches=branches, combine=combine, name=name)


def count_levels(pruning: Pruning, parameters: Parameters, sparsities: Sequence[float]) -> dict[str, Tensor]:
    """Count at each weight the levels that keep it. They are nested, so these are the least sparse ones."""
    counts: dict[str, Tensor] = {}
    for sparsity in sparsities:
        for name, is_in in pruning.keep(parameters, sparsity).items():
            counts[name] = counts[name] + is_in if name in counts else is_in.to(torch.uint8)
    return counts
