"""Full, core, full, core, …: the alternating training scheme (Algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partialsgd.methods.branches import branch_of, numbers_of, require_levels, scaled
from partialsgd.nested import Nested
from partialsgd.nested.family import family_of
from partialsgd.rules import Branch, Context, Method


def alternating(
    nested: Nested,
    *,
    order: Sequence[str] | None = None,
    weights: Mapping[str, float] | None = None,
    lr: Mapping[str, float] | None = None,
    distill: bool = False,
) -> Method:
    """Alternating training (Algorithm 2): the whole network at even t, the core at odd t.

    With more levels it goes from the largest down and begins again. `order` is another cycle of levels;
    `weights` draws the level of each step at random instead, with these odds. `lr` multiplies the learning
    rate of a level's steps (the paper's alternate_lr_coef). With `distill=True` a step of a smaller level runs the
    whole network first, without a gradient, and the closure finds its outputs in `g.teacher`.
    """
    nested = family_of(nested)
    odds, factors = numbers_of(nested, weights, "weights"), numbers_of(nested, lr, "lr")
    require_levels(nested, () if order is None else order, "order")
    cycle = tuple(reversed(nested.levels)) if order is None else tuple(order)
    if order is not None and weights is not None:
        raise ValueError("order is a fixed cycle and weights draws at random: give one of them")
    if not cycle or (weights is not None and not sum(odds.values()) > 0):
        raise ValueError("a step needs a level: order and weights must not be empty")
    each = {level: branch_of(nested, level, taught=distill) for level in nested.levels}

    def branches(context: Context) -> list[Branch]:
        level = context.level or (_drawn(context, odds) if odds else cycle[context.t % len(cycle)])
        return [each[level]] if level in each else []

    return Method(
        branches=branches,
        scale=scaled(factors),
        structural=True,
        name=f"alternating(order={list(cycle)}, weights={odds or None}, lr={factors or None}, distill={distill})",
    )


def _drawn(context: Context, odds: Mapping[str, float]) -> str:
    """A level, drawn by (seed, t)."""
    place = (context.key("level") % 2**53) / 2**53 * sum(odds.values())
    for level, share in odds.items():
        place -= share
        if place < 0:
            return level
    return max(odds, key=lambda level: odds[level])  # rounding alone leads here
