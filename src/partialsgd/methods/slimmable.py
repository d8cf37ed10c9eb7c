"""Every level in one step, accumulated: slimmable training (Yu et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from partialsgd.method import Method
from partialsgd.methods._shared.levels import numbers_of
from partialsgd.nested import Nested
from partialsgd.nested.branches import branch_of
from partialsgd.nested.nested import family_of


def slimmable(
    nested: Nested,
    *,
    combine: Literal["sum", "mean"] = "sum",
    weights: Mapping[str, float] | None = None,
    distill: bool = False,
) -> Method:
    """Slimmable training: one backward pass for each level, then one update with all of them.

    `combine="sum"` adds the gradients, as the authors do; `"mean"` keeps the step as long as that of one level.
    `weights` are the levels' weights in it. With `distill=True` a closure that puts the outputs into
    `g.outputs` finds those of the whole network in `g.teacher` at the smaller levels.
    """
    nested = family_of(nested)
    given = numbers_of(nested, weights, "weights")
    each = [branch_of(nested, level, weight=given.get(level, 1.0), pupil=distill) for level in reversed(nested.levels)]
    return Method(
        branches=lambda context: each,
        combine=combine,
        structural=True,
        name=f"slimmable(levels={list(nested.levels)}, combine={combine}, weights={given or None}, distill={distill})",
    )
