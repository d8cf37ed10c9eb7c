"""p = m, δx = −(1 − m) ⊙ x, one nested m for each sparsity: dynamic sparsity networks (Wu et al. 2021; Section 2).

The levels take turns, or are accumulated in one step, which is then not an instance of Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from partialsgd import masks, perturbations
from partialsgd.masks import Mask
from partialsgd.method import Branch, Context, MaskRule, Method
from partialsgd.methods._shared import magnitudes
from partialsgd.methods._shared.magnitudes import Scope
from partialsgd.methods._shared.settings import as_patterns, require_count
from partialsgd.parameters import Parameters
from partialsgd.perturbations import Perturbation

WHOLE = "full"


def dynamic_sparsity(
    levels: Sequence[float] = (0.5, 0.9),
    *,
    every: int = 16,
    scope: Scope = "global",
    where: Sequence[str] | None = None,
    accumulate: bool = False,
    combine: Literal["sum", "mean"] = "sum",
) -> Method:
    """Dynamic sparsity: one network trained at several sparsities, each inside the one before.

    Step by step the whole network ("full") is trained, then each of `levels`, which are shares of weights that are
    pruned and are named like "0.9"; with `accumulate=True` all of them in every step, their gradients combined by
    `combine`. A level keeps the largest weights, chosen anew at every `every`-th step and, as in `dynamic_pruning`,
    over the network or in each tensor. `sgd.extract("0.9")` is a level, `with sgd.perturbed("0.9"):` runs it.
    """
    sparsities = sorted(levels)
    _require(sparsities)
    magnitudes.require_scope(scope)
    require_count("every", every)

    def mask_of(index: int) -> MaskRule:
        def mask(context: Context) -> Mask:
            since = context.t - context.t % every
            # Also in a step of the whole network: a choice that is due is made when it is due.
            keeping = magnitudes.remembered(
                context, since, lambda: how_many_keep(context.parameters, sparsities, scope, where)
            )
            chosen = {name: number >= index for name, number in keeping.items()} if index else {}
            return masks.from_tensors(context.parameters, chosen, rest=True)

        return mask

    names = [WHOLE, *map(str, sparsities)]
    each = {name: Branch(mask_of(index), _drop, level=name) for index, name in enumerate(names)}

    def branches(context: Context) -> list[Branch]:
        if context.level is not None and context.level not in each:
            raise ValueError(f"there is no level {context.level!r}; there are {', '.join(map(repr, names))}")
        if context.level is None and accumulate:
            return list(each.values())
        return [each[context.level or names[context.t % len(names)]]]

    turns = f"accumulate={accumulate}, combine={combine}"
    patterns = where if where is None else as_patterns(where)
    return Method(
        branches=branches,
        combine=combine,
        name=f"dynamic_sparsity(levels={sparsities}, every={every}, scope={scope}, where={patterns}, {turns})",
    )


def how_many_keep(
    parameters: Parameters, sparsities: Sequence[float], scope: Scope, where: Sequence[str] | None
) -> dict[str, Tensor]:
    """At each weight, how many of the levels keep it. They are nested, so this tells which: the least sparse ones."""
    found: dict[str, Tensor] = {}
    for sparsity in sparsities:
        for name, kept in magnitudes.kept(parameters, sparsity, scope=scope, where=where).items():
            found[name] = found[name] + kept if name in found else kept.to(torch.uint8)
    return found


def _drop(context: Context) -> Perturbation:
    return perturbations.drop_outside(context.mask)


def _require(sparsities: Sequence[float]) -> None:
    for sparsity in sparsities:
        if not 0 < sparsity < 1:
            raise ValueError(f"a level is a sparsity in (0, 1), got {sparsity}; the whole network is always trained")
    if len(set(sparsities)) < len(sparsities) or len(sparsities) > 255:
        raise ValueError(f"the levels must be different from each other and at most 255, got {sparsities}")
