"""`fit_budget`: the specs of levels that cost no more than a budget, and keep what is worth most."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, final

from torch import Tensor, nn

from partialsgd.nested.budgets.allocate import candidates
from partialsgd.nested.budgets.blocks import Blocks, find_blocks
from partialsgd.nested.budgets.budget import Budget, FittedBudget, Kind, Promise
from partialsgd.nested.budgets.choices import (
    Choice,
    LossBatch,
    Measure,
    RankChoice,
    UnitChoice,
    find_choices,
    loss_at,
    measure_again,
)
from partialsgd.nested.budgets.costs import Cost, flop_cost, parameter_cost
from partialsgd.nested.budgets.latency import latency_cost
from partialsgd.nested.budgets.stages import staged
from partialsgd.nested.example_inputs import Call, as_call, as_example
from partialsgd.nested.layers.base import exact_arithmetic
from partialsgd.nested.planning.build import fill_plan, ratio_of
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.specs import Depth, LowRank, Ratio, Spec, Width, as_tuple, resolve_levels
from partialsgd.nested.switch import FULL, Switch

Budgeted: TypeAlias = Width | LowRank | Depth
"""A spec whose sizes a budget chooses."""
_CLEAR = 0.1


def fit_budget(
    model: nn.Module,
    example: Any,
    loss_batches: Sequence[LossBatch | Mapping[str, Any]],
    *,
    budget: Budget,
    spec: Budgeted | Sequence[Budgeted] | None = None,
) -> FittedBudget:
    """Return specs for `nest` whose levels cost no more than the budget, and keep what is worth most.

    `example` is an input, as for `Nested.profile`. `loss_batches` are functions that return the loss of the model on
    one batch, or the arguments of a Hugging Face model that returns its loss. `spec` says what may be smaller, by
    default hidden units: `Width(1, hidden=…)`, `LowRank(1, where=…)`, `Depth("layers", keep=1.0)` or a list of them;
    its ratios, the order of units, and the blocks that stay, are chosen.

    What a unit is worth is measured by one pass over each batch, in three ways: by the gradient, by its activations and
    by its weights. Units that are worth least for what they cost are removed first; by the gradient also in stages,
    with another pass over each batch after each, in the network that is left. Of the allocations that result the one
    with the smallest loss on the batches is taken, if it is clearly smaller than that of the safe choice: the same
    share of every layer, and the units with the largest weights. Blocks are left out in the order of what the loss
    grows without each of them; for several numbers of blocks the widths are fitted, and the smallest loss is taken.
    The model is unchanged.
    """
    listed = Width(1.0) if spec is None else spec
    specs = tuple(listed) if isinstance(listed, Sequence) else (listed,)
    if not specs or any(not isinstance(one, Budgeted) for one in specs):
        raise TypeError(f"spec must be Width, LowRank, Depth or a list of them, got {spec!r}")
    if not loss_batches:
        raise ValueError("loss_batches is empty; give at least one function that returns the loss on a batch")
    if any(isinstance(one, Width) and one.query_key for one in specs):
        raise ValueError("fit_budget does not choose the width of query and key; leave out query_key=True")
    batches = [_as_function(model, batch) for batch in loss_batches]
    with exact_arithmetic(model):
        skipped: set[str] = set()
        while True:
            fitted = _fit(model, example, batches, budget, specs, skipped)
            refused = _refused(model, example, fitted)
            if not refused:
                return fitted
            skipped |= refused


def _fit(
    model: nn.Module,
    example: Any,
    batches: Sequence[LossBatch],
    budget: Budget,
    specs: Sequence[Budgeted],
    skipped: Collection[str],
) -> FittedBudget:
    plan = NestPlan(model, Switch((FULL,)), caller="fit_budget", example=as_example(example))
    narrowing = [one for one in specs if not isinstance(one, Depth)]
    measures: Mapping[Measure, Sequence[Choice]] = {"norm": []}
    if narrowing:
        measures = find_choices(plan, narrowing, batches, skipped)
    blocks = find_blocks(plan, [one for one in specs if isinstance(one, Depth)], batches)
    costs = _Costs(model, as_call(example), blocks, budget.kind)
    full_loss = loss_at(model, [], {}, batches)
    fitted = [
        _levels(
            model, choices, costs, budget, batches, full_loss, in_stages=measure == "gradient" or len(measures) == 1
        )
        for measure, choices in measures.items()
    ]
    totals = [sum(_comparable(promise.loss) for promise in promises) for promises, _ in fitted]
    promises, choices = fitted[_clear_best(totals, len(budget.amounts) * full_loss)]
    filled = _specs(narrowing, choices, promises) + _depths(blocks, promises)
    named = zip(promises, resolve_levels(filled, None), strict=True)
    promises = [replace(promise, level=level) for promise, level in named]
    return FittedBudget(filled, budget, promises, full_loss)


@final
class _Costs:
    """The costs of the model, without some of its blocks; each is made once."""

    def __init__(self, model: nn.Module, call: Call, blocks: Blocks, kind: Kind) -> None:
        self.model, self.call, self.blocks, self.kind = model, call, blocks, kind
        self._made: dict[int, dict[str, Cost]] = {}
        self._seconds: dict[Any, float] = {}

    def without(self, removed: int, choices: Sequence[Choice]) -> dict[str, Cost]:
        """Return the costs if so many blocks are left out; of choices only the sizes count, not the worths."""
        if removed not in self._made:
            kept = self.blocks.kept(removed)
            with self.blocks.shortened(self.model, kept):
                costs = {
                    "parameters": parameter_cost(self.model, choices),
                    "flops": flop_cost(self.model, choices, self.call),
                }
                if self.kind == "latency":
                    costs["latency"] = latency_cost(self.model, choices, self.call, self._seconds)
            self._made[removed] = costs
        return self._made[removed]


def _refused(model: nn.Module, example: Any, fitted: FittedBudget) -> set[str]:
    """Return the layers that `nest` would leave as they are, because it finds that they cannot be cut."""
    levels = resolve_levels(fitted, None)
    plan = NestPlan(model, Switch((*levels, FULL)), example=as_example(example))
    fill_plan(plan, levels, "separate")
    return {name for name in fitted.promises[0].sizes if name not in plan.replacements}


def _levels(
    model: nn.Module,
    choices: Sequence[Choice],
    costs: _Costs,
    budget: Budget,
    batches: Sequence[LossBatch],
    full_loss: float,
    *,
    in_stages: bool,
) -> tuple[list[Promise], Sequence[Choice]]:
    """Return the levels, smallest first, and the choices with the order of units that all levels share.

    Levels are chosen from the largest down, each inside the one before. In stages worths are measured anew, which puts
    the units of the last level in another order, and leaves the others behind them.
    """
    whole, promises, removed = costs.without(0, choices)[budget.kind].full, [], 0
    start = {choice.name: choice.largest for choice in choices}
    for amount in reversed(budget.amounts):
        absolute = amount / 1e3 if budget.kind == "latency" else amount  # milliseconds
        limit = amount * whole if amount <= 1 else absolute
        share = limit / whole
        if share > 1:
            raise ValueError(f"the network has {whole:.4g} {budget.kind}, fewer than the budget of {amount:.4g}")
        states = costs.blocks.states(removed)
        is_chosen = in_stages and len(states) == 1  # otherwise the number of blocks is chosen first
        found = [
            _level(model, choices, costs, (n, start), limit, budget.kind, batches, full_loss, in_stages=is_chosen)
            for n in states
        ]
        fitting = [one for one in found if isinstance(one, _Level)]
        if not fitting:
            least = min(one for one in found if not isinstance(one, _Level))
            raise ValueError(
                f"no level fits {limit:.4g} {budget.kind}: with one unit in every layer that may be smaller, the "
                f"network still has {least:.4g} of {whole:.4g}; raise the budget, or let `spec` reach more layers"
            )
        best = min(fitting, key=lambda one: _comparable(one.loss))
        if in_stages and not is_chosen:
            begin = best.removed, start
            level = _level(model, choices, costs, begin, limit, budget.kind, batches, full_loss, in_stages=True)
            best = level if isinstance(level, _Level) else best
        own = {choice.name: choice for choice in best.choices}
        choices = [_with_worths(choice, own.get(choice.name, choice)) for choice in choices]
        removed, start = best.removed, {**start, **best.sizes}
        kept = costs.blocks.kept(removed)
        at = {kind: cost.at(best.sizes) for kind, cost in costs.without(removed, choices).items()}
        counts = round(at["parameters"]), round(at["flops"])
        promises.append(Promise("", limit, share, *counts, at.get("latency"), best.loss, start, kept))
    return promises[::-1], choices


def _with_worths(choice: Choice, measured: Choice) -> Choice:
    """Return a choice with the order and worths of what is left of it in a level."""
    if isinstance(choice, UnitChoice) and isinstance(measured, UnitChoice):
        return replace(choice, order=measured.order, worth=measured.worth)
    return replace(choice, worth=measured.worth)


class _Level(NamedTuple):
    removed: int
    sizes: dict[str, int]
    loss: float
    choices: Sequence[Choice]


def _level(
    model: nn.Module,
    choices: Sequence[Choice],
    costs: _Costs,
    start: tuple[int, Mapping[str, int]],
    limit: float,
    kind: Kind,
    batches: Sequence[LossBatch],
    full_loss: float,
    *,
    in_stages: bool = False,
) -> _Level | float:
    """Return the best sizes within the limit if some blocks are left out; if none fit, the least that it can cost."""
    removed, largest = start
    kept = costs.blocks.kept(removed)
    own = costs.blocks.remaining(model, choices, kept)
    cost = costs.without(removed, own)[kind]
    least = cost.at({choice.name: cost.sizes_of(choice)[0] for choice in own})
    if least > limit:
        return least
    start_sizes = {choice.name: largest[choice.name] for choice in own}
    with costs.blocks.shortened(model, kept):
        in_stages = in_stages and bool(own)
        if in_stages and (removed or any(start_sizes[choice.name] < choice.full for choice in own)):
            own = measure_again(model, own, start_sizes, batches)
        tried = [(own, sizes) for sizes in candidates(own, cost, limit, start_sizes)]
        if in_stages:
            tried += staged(model, own, cost, limit, start_sizes, batches)
        levels = [_Level(removed, sizes, loss_at(model, each, sizes, batches), each) for each, sizes in tried]
    return levels[_clear_best([_comparable(level.loss) for level in levels], full_loss)]


def _depths(blocks: Blocks, promises: Sequence[Promise]) -> list[Spec]:
    """Return a Depth for each list of which a level leaves blocks out."""
    shorter = [one for one in blocks.lists if any(p.blocks[one.name] < len(one.order) for p in promises)]
    keeps = {one.name: [promise.blocks[one.name] for promise in promises] for one in shorter}
    return [Depth(one.name, keep=k[0] if len(k := keeps[one.name]) == 1 else k, pick=one.order) for one in shorter]


def _specs(specs: Sequence[Width | LowRank], choices: Sequence[Choice], promises: Sequence[Promise]) -> list[Spec]:
    """Write the sizes into the specs. Longer names come first, because a name is a pattern that fits longer ones."""
    base = _ratios([promise.share for promise in promises])
    filled: list[Spec] = []
    for spec in specs:
        kind = UnitChoice if isinstance(spec, Width) else RankChoice
        own = sorted((c for c in choices if isinstance(c, kind)), key=lambda c: -c.name.count("."))
        ratios: dict[str, Ratio] = {c.name: _ratios([p.sizes[c.name] / c.full for p in promises]) for c in own}
        if isinstance(spec, LowRank):
            filled.append(replace(spec, ratio=base, ratios=ratios))
            continue
        order = {c.name: c.order for c in own if isinstance(c, UnitChoice) and c.order != tuple(range(c.full))}
        width = replace(spec, ratio=base, ratios=ratios, order=order)
        for choice in own:
            first = width.split()[0][1]
            if isinstance(choice, UnitChoice) and ratio_of(choice.group, first) != as_tuple(ratios[choice.name])[0]:
                raise ValueError(f"the name {choice.name!r} also fits other hidden layers; rename one of the modules")
        filled.append(width)
    return filled


def _clear_best(losses: Sequence[float], full_loss: float) -> int:
    """Return the index of the smallest loss if it is clearly smaller than the first, else 0.

    The first is the safe choice. Before any training the losses of small networks say little about what training makes
    of them, so another one must close a tenth of the distance to the whole network's loss.
    """
    best = min(range(len(losses)), key=losses.__getitem__)
    is_clear = math.isinf(losses[0]) or losses[0] - losses[best] > _CLEAR * (losses[0] - full_loss)
    return best if is_clear else 0


def _comparable(loss: float) -> float:
    return float("inf") if math.isnan(loss) else loss


def _ratios(values: Sequence[float]) -> Ratio:
    return values[0] if len(values) == 1 else tuple(values)


def _as_function(model: nn.Module, batch: LossBatch | Mapping[str, Any]) -> LossBatch:
    if not isinstance(batch, Mapping):
        if not callable(batch):
            raise TypeError(
                "loss_batches must hold functions without arguments that return the loss, or dicts of arguments for a "
                f"Hugging Face model; got a {type(batch).__name__}"
            )
        return batch

    def loss() -> Tensor:
        value = getattr(model(**batch), "loss", None)
        if not isinstance(value, Tensor):
            raise ValueError(
                "the model returns no loss for a dict of loss_batches; add its labels, or give functions that return it"
            )
        return value

    return loss
