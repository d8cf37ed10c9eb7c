"""Largest, smallest and random levels between, in one step: the sandwich rule (Yu and Huang 2019)."""

from __future__ import annotations

from torch import nn

from partialsgd.method import Branch, Context, Method
from partialsgd.methods._shared.settings import Combine, nested_in, require_count, require_one_of
from partialsgd.nested.branches import branch_of


def sandwich(*, between: int = 2, combine: Combine = "sum", distill: bool = True) -> Method:
    """The sandwich rule: the largest level, the smallest and some drawn between, in one step.

    `between` levels are drawn anew at each step, or all of them where there are not more. With `distill=True` a
    closure that puts the outputs into `g.outputs` finds those of the whole network in `g.teacher` at the smaller
    levels, detached, to learn from in place of the labels.
    """
    require_count("between", between, least=0)
    require_one_of("combine", combine, Combine)

    def build(model: nn.Module) -> Method:
        nested = nested_in(model)
        if len(nested.levels) < 2:
            only = nested.levels[0]
            raise ValueError(f"the sandwich rule needs a smallest level and a largest; there is {only!r} alone")
        branch_by_level = {level: branch_of(nested, level, pupil=distill) for level in nested.levels}
        smallest, *middle, largest = nested.levels

        def branches(context: Context) -> list[Branch]:
            if context.level in branch_by_level:
                return [branch_by_level[context.level]]
            drawn = sorted(middle, key=lambda level: context.key(f"sandwich {level}"))[:between]
            chosen = [largest, *(level for level in reversed(middle) if level in drawn), smallest]
            return [branch_by_level[level] for level in chosen]

        settings = f"between={between}, combine={combine}, distill={distill}"
        name = f"sandwich(levels={list(nested.levels)}, {settings})"
        return Method(branches=branches, combine=combine, structural=True, name=name)

    return Method(build=build, name="sandwich")
