"""Full, core, full, core, …: the alternating training scheme (Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from torch import nn

from partialsgd.meters.criteria import latest
from partialsgd.meters.criteria_meter import CriteriaMeter
from partialsgd.method import Branch, Context, Method
from partialsgd.methods._shared.settings import nested_in, require_count, require_levels, require_numbers
from partialsgd.nested.branches import branch_of

Order: TypeAlias = Sequence[str] | Literal["criterion"]
Weights: TypeAlias = Mapping[str, float] | Mapping[int, Mapping[str, float]]
"""Odds of the levels, or odds by the step from which on they hold."""
EVEN_SHARE = 1 / 4
"""The share of all steps that `order="criterion"` gives to the levels evenly."""
_AT, _LEVEL, _CREDIT = "alternating.at", "alternating.level", "alternating.credit."


def alternating(
    *,
    order: Order | None = None,
    weights: Weights | None = None,
    lr: Mapping[str, float] | None = None,
    distill: bool | Literal["cached"] = False,
    every: int | None = None,
) -> Method:
    """Alternating training (Algorithm 2): the whole network at even t, the core at odd t.

    With more levels it goes from the largest down and begins again. `order` is another cycle of levels;
    `weights` draws the level of each step at random instead, with these odds, or with other odds from certain steps on:
    `{0: {"full": 1, "core": 1}, 600: {"full": 7, "core": 3}}` trains the whole network more often late. `lr` multiplies
    the learning rate of a level's steps (the paper's alternate_lr_coef). With `distill=True` a step of a smaller level
    runs the whole network first, without a gradient, and the closure finds its outputs in `g.teacher`. With
    `distill="cached"` no pass is added: a step of a smaller level than the one before it repeats that step's batch
    (`sgd.repeats_batch` tells the loop) and finds its outputs, if the closure assigns `g.batch` and `g.outputs`.

    `order="criterion"` begins so and then gives a level more or fewer steps as the criteria say, which are measured at
    every `every`-th of its steps (10): in proportion to 1 / (q² · its share of the parameters). A quarter of the steps
    is divided evenly, so that no level is left out.
    """
    odds, factors = _odds_by_step(weights), require_numbers(lr, "lr")
    by_criterion = order == "criterion"
    if isinstance(order, str) and not by_criterion:
        raise ValueError(f"order must be a list of levels such as ['full', 'core'], or 'criterion'; got {order!r}")
    if order is not None and weights is not None:
        raise ValueError("order says which level is next and weights draws it at random: give one of them")
    if (order is not None and not order) or not all(sum(each.values()) > 0 for each in odds.values()):
        raise ValueError(
            f"a step needs a level: order must name one, and weights give one a number above 0; got order={order!r}, "
            f"weights={weights!r}"
        )
    if every is not None and not by_criterion:
        raise ValueError(f"every={every} is how often order='criterion' measures, and nothing else measures")
    if distill not in (True, False, "cached"):
        raise ValueError(f"distill must be True, False or 'cached', got {distill!r}")
    every = 10 if every is None else every
    require_count("every", every)

    def build(model: nn.Module) -> Method:
        nested = nested_in(model)
        cycle = tuple(reversed(nested.levels)) if order is None or by_criterion else tuple(order)
        for setting, levels in (("order", cycle), *(("weights", each) for each in odds.values()), ("lr", factors)):
            require_levels(nested, levels, setting)
        each = {level: branch_of(nested, level, taught=distill is True) for level in nested.levels}
        places = {level: place for place, level in enumerate(each)}  # the smallest level first
        if distill == "cached":
            each = {level: replace(branch, caches=level != nested.levels[0]) for level, branch in each.items()}
        counts = {level: sum(p.numel() for p in nested.parameters(level=level) if p.requires_grad) for level in each}
        sizes = {level: max(counts[level], 1) / max(counts[nested.levels[-1]], 1) for level in cycle}

        def next_level(context: Context) -> str:
            if by_criterion:
                return _level_by_criterion(context, sizes)
            if odds:
                return _drawn_level(context, odds[max(step for step in odds if step <= context.t)])
            return cycle[context.t % len(cycle)]

        def branches(context: Context) -> list[Branch]:
            level = context.level or next_level(context)
            if level not in each:
                return []
            repeats = distill == "cached" and places[level] < places.get(context.cached_level or "", 0)
            return [replace(each[level], repeats=True) if repeats else each[level]]

        named_odds = odds[0] if list(odds) == [0] else odds or None
        settings = f"order=criterion, every={every}" if by_criterion else f"order={list(cycle)}, weights={named_odds}"
        return Method(
            branches=branches,
            scale=lambda context: factors.get(context.level or "", 1.0),
            meter=CriteriaMeter(every=every, groups={}, alerts=None) if by_criterion else None,
            structural=True,
            name=f"alternating({settings}, lr={factors or None}, distill={distill})",
        )

    return Method(build=build, name="alternating")


def _odds_by_step(weights: Weights | None) -> dict[int, dict[str, float]]:
    """Return the odds of the levels by the step from which on they hold, the first from step 0; empty without any."""
    if weights is None:
        return {}
    has_steps = any(isinstance(odds, Mapping) for odds in weights.values())
    by_step: Mapping[Any, Any] = weights if has_steps else {0: weights}
    if has_steps and not all(isinstance(odds, Mapping) for odds in by_step.values()):
        raise ValueError(f"weights must give odds for every step, or for every level; got {weights!r}")
    for step in by_step:
        require_count("a step in weights", step, least=0)
    if 0 not in by_step:
        raise ValueError(f"weights must say the odds from step 0 on; the first step is {min(by_step)}")
    return {step: require_numbers(by_step[step], "weights") for step in sorted(by_step)}


def _drawn_level(context: Context, odds: Mapping[str, float]) -> str:
    """Draw a level by (seed, t)."""
    place = (context.key("level") % 2**53) / 2**53 * sum(odds.values())
    for level, share in odds.items():
        place -= share
        if place < 0:
            return level
    return max(odds, key=lambda level: odds[level])  # rounding alone leads here


def _level_by_criterion(context: Context, sizes: Mapping[str, float]) -> str:
    """Choose the level that is owed most by what was measured before this step; decided once a step."""
    memory = context.memory
    if memory.get(_AT) == context.t:
        return str(memory[_LEVEL])
    measured = {level: latest(context.measured, level, "q") for level in sizes}
    values = {level: 1.0 if q is None else step_value(q, sizes[level]) for level, q in measured.items()}
    credits = {level: float(memory.get(_CREDIT + level, 0.0)) for level in sizes}
    chosen, credits = take_turn(credits, step_shares(values))
    memory.update({_AT: context.t, _LEVEL: chosen})
    memory.update({_CREDIT + level: credit for level, credit in credits.items()})
    return chosen


def step_value(q: float, size: float) -> float:
    """Return how much a level's step lowers f relative to one of the whole network and to its size: (1 / q²) / size.

    By Lemma 3 a step lowers f by γ/2 · α² ‖p ⊙ G̃‖², and one of the whole network by γ/2 · ‖G‖²: the ratio is 1/q².
    `size` is the level's share of the parameters. A mask that leaves that share of ‖G‖² and is not perturbed, such as
    a random one on average, gets 1.
    """
    return 0.0 if math.isnan(q) else 1 / (q * q * size)


def step_shares(values: Mapping[str, float]) -> dict[str, float]:
    """Divide the steps to come: each level gets at least `EVEN_SHARE` / n, and the shares sum to 1."""
    total, even = sum(values.values()), 1 / len(values)
    return {level: EVEN_SHARE * even + (1 - EVEN_SHARE) * (v / total if total else even) for level, v in values.items()}


def take_turn(credits: Mapping[str, float], shares: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """Return the level with the most credit, the first of equals, and the credits after it has paid one step.

    Of n levels one is passed over at most n (n − 1) / EVEN_SHARE times in a row, however the shares change: credits sum
    to 0, and none is below 1/n − 1, because who pays had at least 1/n. So none is above (n − 1)² / n, and one that is
    passed over gains EVEN_SHARE / n each time.
    """
    owed = {level: credits.get(level, 0.0) + share for level, share in shares.items()}
    chosen = max(owed, key=lambda level: round(owed[level], 9))  # roundings must not decide between equals
    return chosen, owed | {chosen: owed[chosen] - 1}
