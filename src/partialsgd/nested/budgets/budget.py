"""`Budget` and `fit_budget`: what a level may cost, and the spec of a level that costs no more."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, final, get_args, overload

from torch import Tensor, nn

from partialsgd.nested.budgets.allocate import candidates
from partialsgd.nested.budgets.choices import Choice, LossBatch, RankChoice, UnitChoice, find_choices, loss_at
from partialsgd.nested.budgets.costs import Cost, flop_cost, parameter_cost
from partialsgd.nested.budgets.latency import latency_cost
from partialsgd.nested.example_inputs import as_call, as_example
from partialsgd.nested.layers.base import exact_arithmetic
from partialsgd.nested.planning.build import fill_plan, ratio_of
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.specs import LowRank, Ratio, Spec, Width, as_tuple, level_name, resolve_levels
from partialsgd.nested.switch import FULL, Switch

if TYPE_CHECKING:
    from partialsgd.nested.nested import Nested

Kind: TypeAlias = Literal["parameters", "flops", "latency"]
Amount: TypeAlias = float | Sequence[float]


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit on one cost of a level: its parameters, or the FLOPs or latency of a forward pass on the example.

    A number up to 1 is a share of the whole network's, a larger one is an absolute number: parameters, FLOPs or
    milliseconds. Several give several levels, each inside the next. Latency is measured on the machine, and with the
    number of threads, that `fit_budget` runs with.
    """

    parameters: Amount | None = None
    flops: Amount | None = None
    latency: Amount | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in get_args(Kind) if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"a budget limits one of {', '.join(get_args(Kind))}; got {' and '.join(given) or 'none'}")
        if not self.amounts:
            raise ValueError(f"the budget of {self.kind} is empty; give a number, or several")
        for amount in self.amounts:
            if isinstance(amount, (bool, str)) or not isinstance(amount, (int, float)) or not amount > 0:
                raise ValueError(f"{self.kind} must be a share of the whole network or a number, got {amount!r}")
        if list(self.amounts) != sorted(set(self.amounts)):
            raise ValueError(f"the budgets of several levels must grow, smallest first; got {self.amounts}")

    @property
    def kind(self) -> Kind:
        return next(kind for kind in cast("tuple[Kind, ...]", get_args(Kind)) if getattr(self, kind) is not None)

    @property
    def amounts(self) -> tuple[float, ...]:
        return as_tuple(cast(Ratio, getattr(self, self.kind)))


@final
@dataclass(frozen=True)
class Promise:
    """The cost that a level is expected to have."""

    level: str
    limit: float
    """The budget as an absolute number."""
    share: float
    """The budget as a share of the whole network's."""
    parameters: int
    flops: int
    latency: float | None
    """Seconds, where the budget is one of latency."""
    loss: float
    """The mean loss of the level on the batches, before any training."""
    sizes: Mapping[str, int]
    """The number of units, or the rank, by the name of the layer."""


@final
class FittedBudget(Sequence[Spec]):
    """The specs that `nest` takes, with what they promise."""

    def __init__(self, specs: Sequence[Spec], budget: Budget, promises: Sequence[Promise], full_loss: float) -> None:
        self.specs, self.budget, self.promises = tuple(specs), budget, tuple(promises)
        self.full_loss = full_loss
        """The mean loss of the whole network on the batches."""

    @overload
    def __getitem__(self, index: int) -> Spec: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Spec, ...]: ...
    def __getitem__(self, index: int | slice) -> Spec | tuple[Spec, ...]:
        return self.specs[index]

    def __len__(self) -> int:
        return len(self.specs)

    def __str__(self) -> str:
        head = ("level", "limit", "parameters", "FLOPs", "loss")
        rows = [
            (p.level, f"{p.limit:.3g}", f"{p.parameters:,}", f"{p.flops:.3g}", f"{p.loss:.4g}") for p in self.promises
        ]
        return _table([head, *rows, (FULL, "", "", "", f"{self.full_loss:.4g}")])

    def compare(self, nested: Nested, example: Any, *, repeats: int = 5) -> str:
        """Return what was promised beside what is measured on the nested model; print it."""
        rows = {row.level: row for row in nested.profile(example, repeats=repeats).rows}
        lines = [
            (
                "level",
                *(f"{who} {what}" for what in ("parameters", "FLOPs", "latency") for who in ("promised", "measured")),
            )
        ]
        for promise in self.promises:
            row = rows[promise.level]
            counts = (f"{promise.parameters:,}", f"{row.parameters:,}", f"{promise.flops:.4g}", f"{row.forward:.4g}")
            low, high = row.spread
            promised = "-" if promise.latency is None else f"{1e3 * promise.latency:.2f} ms"
            measured = f"{1e3 * row.latency:.2f} ms ({1e3 * low:.2f} to {1e3 * high:.2f})"
            lines.append((promise.level, *counts, promised, measured))
        return _table(lines)


def fit_budget(
    model: nn.Module,
    example: Any,
    loss_batches: Sequence[LossBatch | Mapping[str, Any]],
    *,
    budget: Budget,
    spec: Width | LowRank | Sequence[Width | LowRank] | None = None,
) -> FittedBudget:
    """Return specs for `nest` whose levels cost no more than the budget, and keep what is worth most.

    `example` is an input, as for `Nested.profile`. `loss_batches` are functions that return the loss of the model on
    one batch, or the arguments of a Hugging Face model that returns its loss. `spec` says what may be smaller, by
    default hidden units: `Width(1, hidden=…)`, `LowRank(1, where=…)` or a list of both; its ratios, and the order of
    units, are chosen.

    What a unit is worth is measured by one pass over each batch, in three ways: by the gradient, by its activations and
    by its weights. Units that are worth least for what they cost are removed first; of the allocations that result,
    and the same share of every layer, the one with the smallest loss on the batches is taken. The model is unchanged.
    """
    listed = Width(1.0) if spec is None else spec
    specs = tuple(listed) if isinstance(listed, Sequence) else (listed,)
    if not specs or any(not isinstance(one, (Width, LowRank)) for one in specs):
        raise TypeError(f"spec must be Width, LowRank or a list of them, got {spec!r}")
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
    specs: Sequence[Width | LowRank],
    skipped: Collection[str],
) -> FittedBudget:
    plan = NestPlan(model, Switch((FULL,)), caller="fit_budget", example=as_example(example))
    measures = find_choices(plan, specs, batches, skipped)
    anyone = next(iter(measures.values()))
    costs = {"parameters": parameter_cost(model, anyone), "flops": flop_cost(model, anyone, as_call(example))}
    if budget.kind == "latency":
        costs["latency"] = latency_cost(model, anyone, as_call(example))
    found = [(_levels(model, choices, costs, budget, batches), choices) for choices in measures.values()]
    promises, choices = min(found, key=lambda one: sum(_comparable(promise.loss) for promise in one[0]))
    return FittedBudget(_specs(specs, choices, promises), budget, promises, loss_at(model, [], {}, batches))


def _refused(model: nn.Module, example: Any, fitted: FittedBudget) -> set[str]:
    """Return the layers that `nest` would leave as they are, because it finds that they cannot be cut."""
    levels = resolve_levels(fitted, None)
    plan = NestPlan(model, Switch((*levels, FULL)), example=as_example(example))
    fill_plan(plan, levels, "separate")
    return {name for name in fitted.promises[0].sizes if name not in plan.replacements}


def _levels(
    model: nn.Module, choices: Sequence[Choice], costs: Mapping[str, Cost], budget: Budget, batches: Sequence[LossBatch]
) -> list[Promise]:
    """Return the levels, smallest first; they are chosen from the largest down, each inside the one before."""
    cost, promises = costs[budget.kind], []
    start = {choice.name: choice.largest for choice in choices}
    for amount in reversed(budget.amounts):
        absolute = amount / 1e3 if budget.kind == "latency" else amount  # milliseconds
        limit = amount * cost.full if amount <= 1 else absolute
        share = limit / cost.full
        if share > 1:
            raise ValueError(f"the network has {cost.full:.4g} {budget.kind}, fewer than the budget of {amount:.4g}")
        name = level_name(share) if len(budget.amounts) > 1 else "core"
        least = cost.at({choice.name: 1 for choice in choices})
        if least > limit:
            raise ValueError(
                f"no level fits {limit:.4g} {budget.kind}: with one unit in every layer that may be smaller, the "
                f"network still has {least:.4g} of {cost.full:.4g}; raise the budget, or let `spec` reach more layers"
            )
        found = {tuple(sizes.items()): sizes for sizes in candidates(choices, cost, limit, start)}
        losses = {key: loss_at(model, choices, sizes, batches) for key, sizes in found.items()}
        best = min(found, key=lambda key: _comparable(losses[key]))
        start = found[best]
        parameters, flops = (round(costs[kind].at(start)) for kind in ("parameters", "flops"))
        latency = costs["latency"].at(start) if "latency" in costs else None
        promises.append(Promise(name, limit, share, parameters, flops, latency, losses[best], start))
    return promises[::-1]


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


def _table(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    columns = [f"{{:<{widths[0]}}}", *(f"{{:>{width}}}" for width in widths[1:])]
    return "\n".join("  ".join(columns).format(*line) for line in lines)
