"""The table of latencies: exact at its points, growing with the size, and a sum that begins at the whole network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.nested.budgets.choices import find_choices
from partialsgd.nested.budgets.latency import LayerTime, Table, grid_of, latency_cost
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import Switch


def test_a_table_is_exact_at_its_points_and_interpolates_between_them() -> None:
    table = Table((2, 4), (1, 3, 5), ((1.0, 2.0, 3.0), (2.0, 4.0, 8.0)))
    for i, rows in enumerate(table.rows):
        for j, columns in enumerate(table.columns):
            assert table.at(rows, columns) == table.seconds[i][j]
    assert table.at(3, 1) == 1.5 and table.at(2, 2) == 1.5 and table.at(3, 4) == (2 + 3 + 4 + 8) / 4
    assert table.at(1, 1) == 1.0 and table.at(9, 9) == 8.0, "outside the grid the nearest point counts"


def network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.ReLU(), nn.Flatten(), nn.Linear(864, 5)
    )
    return model, torch.randn(2, 3, 10, 10)


@pytest.mark.parametrize("spec", [ps.Width(1.0), ps.LowRank(1.0)])
def test_the_cost_begins_at_the_whole_network_and_falls_with_every_unit(spec: ps.Width | ps.LowRank) -> None:
    model, x = network()
    plan = NestPlan(model, Switch(("full",)))
    choices = find_choices(plan, [spec], [lambda: model(x).pow(2).mean()])["norm"]
    cost = latency_cost(model, choices, ((x,), {}), {})
    full = {choice.name: choice.full for choice in choices}
    if isinstance(spec, ps.Width):
        assert cost.at(full) == pytest.approx(cost.full)
    start = {choice.name: choice.largest for choice in choices}
    for choice in choices:
        seconds = [cost.at({**start, choice.name: size}) for size in range(1, choice.largest + 1)]
        assert seconds == sorted(seconds), f"a larger {choice.name} seems faster"
    assert cost.full > 0


def test_sizes_of_a_table_are_few_and_multiples_of_a_kernels_block_where_there_are_many_units() -> None:
    assert grid_of(5) == (1, 2, 3, 4, 5)
    assert grid_of(32) == tuple(range(4, 33, 4))
    assert grid_of(256) == tuple(range(32, 257, 32))
    for full in range(1, 3000, 7):
        grid = grid_of(full)
        assert len(grid) <= 16 and grid[-1] == full and list(grid) == sorted(set(grid))
        if full >= 128:
            assert all(size % 16 == 0 for size in grid[:-1])


def test_a_budget_of_latency_chooses_sizes_that_were_measured() -> None:
    """A layer of 52 channels takes as long as one of 64 on many processors, so times in between are unknown."""
    model, x = network()
    fitted = ps.fit_budget(model, x, [lambda: model(x).pow(2).mean()], budget=ps.Budget(latency=(0.8, 0.9)))
    full = {"0": 16, "2": 24}
    for promise in fitted.promises:
        assert all(promise.sizes[name] in grid_of(units) for name, units in full.items())


def test_every_layer_was_measured_at_the_sizes_that_may_be_chosen() -> None:
    model, x = network()
    plan = NestPlan(model, Switch(("full",)))
    choices = find_choices(plan, [ps.Width(1.0)], [lambda: model(x).pow(2).mean()])["norm"]
    cost = latency_cost(model, choices, ((x,), {}), {})
    layers = [term for term in cost.terms if isinstance(term, LayerTime)]
    assert [layer.table.columns for layer in layers] == [(3,), grid_of(16), tuple(36 * n for n in grid_of(24))]
    assert [layer.table.rows for layer in layers] == [grid_of(16), grid_of(24), (5,)]
    full = {choice.name: choice.full for choice in choices}
    assert sum(layer.value(full) for layer in layers) <= cost.full * (1 + 1e-9), "layers take longer than the network"


def test_a_budget_of_latency_is_kept_by_the_table_and_shown_beside_the_measurement() -> None:
    model, x = network()
    fitted = ps.fit_budget(model, x, [lambda: model(x).pow(2).mean()], budget=ps.Budget(latency=0.9))
    promise = fitted.promises[0]
    assert promise.latency is not None and promise.latency <= promise.limit
    shown = fitted.compare(ps.nest(model, fitted), x, repeats=1)
    assert "promised latency" in shown and "measured latency" in shown
