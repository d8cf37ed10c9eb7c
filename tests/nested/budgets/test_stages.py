"""A cut in stages is what removing units from the layers, and measuring the smaller network each time, gives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.nested.budgets.choices import Choice, UnitChoice, find_choices, measure_again
from partialsgd.nested.budgets.costs import Cost, Length, Product, parameter_cost
from partialsgd.nested.budgets.stages import stage_limits, staged
from partialsgd.nested.planning.groups import Producer, UnitGroup
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import Switch

ROWS = [slice(i, i + 32) for i in range(0, 96, 32)]


def trained() -> tuple[nn.Sequential, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3)).double()
    x = torch.randn(96, 8).double()
    y = (x[:, :3] + x[:, 3:6] * x[:, 5:8]).argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model, x, y


def batches_of(model: nn.Module, x: Tensor, y: Tensor) -> list[Callable[[], Tensor]]:
    return [lambda rows=rows: F.cross_entropy(model(x[rows]), y[rows]) for rows in ROWS]


def by_gradient(model: nn.Module, batches: Sequence[Callable[[], Tensor]]) -> list[Choice]:
    return find_choices(NestPlan(model, Switch(("full",))), [ps.Width(1.0)], batches)["gradient"]


def without_others(model: nn.Sequential, kept: list[int]) -> nn.Sequential:
    """The definition of a level: a network that has only these hidden units."""
    small = copy.deepcopy(model)
    small[0] = nn.Linear(8, len(kept)).double()
    small[2] = nn.Linear(len(kept), 3).double()
    with torch.no_grad():
        small[0].weight.copy_(model[0].weight[kept])
        small[0].bias.copy_(model[0].bias[kept])
        small[2].weight.copy_(model[2].weight[:, kept])
        small[2].bias.copy_(model[2].bias)
    return small


def worths_in(model: nn.Sequential, kept: list[int], x: Tensor, y: Tensor) -> dict[int, float]:
    """The squared derivative of the loss by a factor in front of each unit of the network that has only these."""
    small, total = without_others(model, kept), torch.zeros(len(kept)).double()
    for rows in ROWS:
        factor = torch.ones(len(kept), dtype=torch.float64, requires_grad=True)
        hidden = small[1](small[0](x[rows])) * factor
        total += torch.autograd.grad(F.cross_entropy(small[2](hidden), y[rows]), factor)[0].pow(2)
    return dict(zip(kept, total.tolist(), strict=True))


def test_worths_measured_again_are_those_of_the_network_that_is_left() -> None:
    model, x, y = trained()
    batches = batches_of(model, x, y)
    (choice,) = by_gradient(model, batches)
    before = copy.deepcopy(model.state_dict())
    (again,) = measure_again(model, [choice], {"0": 9}, batches)
    assert isinstance(choice, UnitChoice) and isinstance(again, UnitChoice)
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert set(again.order[:9]) == set(choice.order[:9]) and again.order[9:] == choice.order[9:]
    expected = worths_in(model, sorted(choice.order[:9]), x, y)
    assert list(again.order[:9]) == sorted(expected, key=lambda unit: -expected[unit])
    for unit, worth in zip(again.order, again.worth, strict=True):
        assert worth == pytest.approx(expected.get(unit, 0.0), rel=1e-9)


def test_a_cut_in_stages_keeps_the_units_that_are_left_when_units_are_removed_for_good() -> None:
    model, x, y = trained()
    batches = batches_of(model, x, y)
    choices = by_gradient(model, batches)
    cost = parameter_cost(model, choices)
    limit = cost.full / 4
    kept = list(range(24))
    for stage in stage_limits(cost, choices, limit, {"0": 24}):
        worths = worths_in(model, kept, x, y)
        while sum(p.numel() for p in without_others(model, kept).parameters()) > stage:
            kept.remove(min(kept, key=lambda unit: worths[unit]))
    cuts = list(staged(model, choices, cost, limit, {"0": 24}, batches))
    assert len(cuts) == 2
    for (choice,), sizes in cuts:
        assert isinstance(choice, UnitChoice)
        assert sorted(choice.order[: sizes["0"]]) == sorted(kept)
    (once,) = choices
    assert isinstance(once, UnitChoice)
    assert sorted(once.order[: len(kept)]) != sorted(kept), "the stages change nothing, so this test shows nothing"


def test_a_stage_leaves_at_least_three_quarters_of_what_may_be_removed() -> None:
    choices = [UnitChoice(UnitGroup(100, (Producer("a"),)), (), tuple(range(100)), (1.0,) * 100)]
    cost = Cost(150.0, (Product(1.0, (Length((("a", 1),), 0),)),), 100.0)  # 50 always stay
    for limit in (140.0, 120.0, 80.0, 52.0, 51.0):
        limits = stage_limits(cost, choices, limit, {"a": 100})
        assert limits[-1] == limit and limits == sorted(limits, reverse=True)
        shares = [(after - 51) / (before - 51) for before, after in zip([150.0, *limits], limits, strict=False)]
        assert all(share >= 3 / 4 - 1e-9 for share in shares[:-1])
    assert stage_limits(cost, choices, 150.0, {"a": 100}) == [150.0]
    assert len(stage_limits(cost, choices, 51.0, {"a": 100})) == 17
