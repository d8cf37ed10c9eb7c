"""Every level in one step, accumulated: slimmable training (Yu et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from partialsgd.method import Method
from partialsgd.methods._shared.settings import Combine, nested_in, require_levels, require_numbers, require_one_of
from partialsgd.nested.branches import branch_of


def slimmable(*, combine: Combine = "sum", weights: Mapping[str, float] | None = None, distill: bool = False) -> Method:
    """Slimmable training: one backward pass for each level, then one update with all of them.

    `combine="sum"` adds the gradients, as the authors do; `"mean"` keeps the step as long as that of one level.
    `weights` are the levels' weights in it. With `distill=True` a closure that puts the outputs into
    `g.outputs` finds those of the whole network in `g.teacher` at the smaller levels.
    """
    by_level = require_numbers(weights, "weights")
    require_one_of("combine", combine, Combine)

    def build(model: nn.Module) -> Method:
        nested = nested_in(model)
        require_levels(nested, by_level, "weights")
        weight_by_level = {level: by_level.get(level, 1.0) for level in reversed(nested.levels)}
        if not any(weight_by_level.values()):
            raise ValueError(f"no level has a weight: weights are {by_level}; give one of them a positive number")
        branches = [branch_of(nested, level, weight=weight, pupil=distill) for level, weight in weight_by_level.items()]
        settings = f"combine={combine}, weights={by_level or None}, distill={distill}"
        name = f"slimmable(levels={list(nested.levels)}, {settings})"
        return Method(branches=lambda context: branches, combine=combine, structural=True, name=name)

    return Method(build=build, name="slimmable")
