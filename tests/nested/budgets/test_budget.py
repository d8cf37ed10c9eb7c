"""A fitted budget is kept, keeps what it promises, and is no worse than the same share of every layer."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.nested.budgets.allocate import candidates
from partialsgd.nested.budgets.budget import FittedBudget
from partialsgd.nested.budgets.choices import UnitChoice, find_choices, loss_at
from partialsgd.nested.budgets.costs import Cost, Length, Product, parameter_cost
from partialsgd.nested.budgets.fit import _clear_best
from partialsgd.nested.planning.groups import Producer, UnitGroup, UnitSlice
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import Switch
from tests.zoo import ZOO, normal

Batches = list[Callable[[], Tensor]]


def trained_mlp() -> tuple[nn.Module, Tensor, Batches]:
    """A network whose two hidden layers differ in what their units are worth."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(128, 8)
    y = (x[:, :3] + x[:, 3:6] * x[:, 5:8]).argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()

    def loss(rows: slice) -> Callable[[], Tensor]:
        return lambda: F.cross_entropy(model(x[rows]), y[rows])

    return model, x[:4], [loss(slice(i, i + 32)) for i in range(0, 128, 32)]


def sizes_by_level(fitted: FittedBudget) -> list[dict[str, int]]:
    return [dict(promise.sizes) for promise in fitted.promises]


@pytest.mark.parametrize("kind", ["parameters", "flops"])
@pytest.mark.parametrize("spec", [ps.Width(1.0), ps.LowRank(1.0)])
def test_levels_stay_within_the_budget_and_cost_what_was_promised(kind: str, spec: Any) -> None:
    model, example, batches = trained_mlp()
    before = copy.deepcopy(model.state_dict())
    fitted = ps.fit_budget(model, example, batches, budget=ps.Budget(**{kind: (1 / 3, 2 / 3)}), spec=spec)
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    nested = ps.nest(model, fitted)
    assert nested.levels == ("1/3", "2/3", "full")
    rows = {row.level: row for row in nested.profile(example, repeats=1).rows}
    for promise, share in zip(fitted.promises, (1 / 3, 2 / 3), strict=True):
        row = rows[promise.level]
        assert (promise.parameters, promise.flops) == (row.parameters, row.forward)
        full = rows["full"].parameters if kind == "parameters" else promise.limit / promise.share
        used = row.parameters if kind == "parameters" else row.forward
        assert used <= share * full, "the budget is exceeded"
        assert used > 0.8 * share * full, "units that fit were left out"
        with nested.at(promise.level), torch.no_grad():
            loss = sum(float(batch()) for batch in batches) / len(batches)
        assert loss == pytest.approx(promise.loss, rel=1e-4), "the loss of the level is not the one that was compared"


@pytest.mark.parametrize("name", ["resnet18", "gpt2", "bert"])
def test_other_networks_get_what_was_promised(name: str) -> None:
    network = ZOO[name]
    model, inputs = network.build().double().eval(), network.inputs(2)

    def loss() -> Tensor:
        outputs = model(**inputs)
        return (outputs if isinstance(outputs, Tensor) else outputs[0]).float().pow(2).mean()

    fitted = ps.fit_budget(model, inputs, [loss], budget=ps.Budget(flops=0.8))
    nested = ps.nest(model, fitted)
    core, full = nested.profile(inputs, repeats=1).rows
    assert (fitted.promises[0].parameters, fitted.promises[0].flops) == (core.parameters, core.forward)
    assert core.forward <= 0.8 * full.forward
    assert "core" in fitted.compare(nested, inputs, repeats=1)


class Residual(nn.Module):
    """Six blocks, of which 0 widens, 2 and 4 do nearly nothing, and the last widens again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        shapes = [(6, 8), (8, 8), (8, 8), (8, 8), (8, 8), (8, 10)]
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(a, 12), nn.Tanh(), nn.Linear(12, b)) for a, b in shapes])
        for idle in (self.blocks[2], self.blocks[4]):
            nn.init.normal_(idle[2].weight, std=1e-3)
            nn.init.zeros_(idle[2].bias)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            y = block(x)
            x = x + y if x.shape == y.shape else y
        return x


def residual() -> tuple[Residual, Tensor, Batches]:
    model, x = Residual().double(), normal(8, 6)
    with torch.no_grad():
        y = model(x)
    return model, x, [lambda: F.mse_loss(model(x[:4]), y[:4]), lambda: F.mse_loss(model(x[4:]), y[4:])]


def kept_blocks(nested: ps.Nested, level: str) -> tuple[int, ...]:
    indices: tuple[int, ...] = nested.model.blocks.indices[level]
    return indices


@pytest.mark.parametrize("kind", ["parameters", "flops"])
def test_blocks_whose_absence_the_loss_does_not_feel_are_left_out_first(kind: str) -> None:
    model, x, batches = residual()
    before = dict(model.named_modules())
    depth = ps.Depth("blocks", keep=1.0)
    fitted = ps.fit_budget(model, x, batches, budget=ps.Budget(**{kind: 0.7}), spec=depth)
    assert list(fitted) == [ps.Depth("blocks", keep=4, pick=(0, 5, *fitted[0].pick[2:]))]
    assert dict(model.named_modules()) == before, "the model is as it was"
    nested = ps.nest(model, fitted, example=x)
    assert kept_blocks(nested, "core") == (0, 1, 3, 5)
    core = nested.profile(x, repeats=1).rows[0]
    assert (fitted.promises[0].parameters, fitted.promises[0].flops) == (core.parameters, core.forward)
    with nested.at("core"), torch.no_grad():
        assert sum(float(batch()) for batch in batches) / 2 == pytest.approx(fitted.promises[0].loss)


def test_blocks_and_units_are_chosen_together_and_levels_lie_inside_each_other() -> None:
    model, x, batches = residual()
    budget = ps.Budget(parameters=(0.3, 0.6))
    both = ps.fit_budget(model, x, batches, budget=budget, spec=[ps.Depth("blocks", keep=1.0), ps.Width(1.0)])
    width = ps.fit_budget(model, x, batches, budget=budget)
    assert both.promises[1].loss < width.promises[1].loss, "two idle blocks cost more than they are worth"
    nested = ps.nest(model, both, example=x)
    assert nested.levels == ("3/10", "3/5", "full")
    small, large = (kept_blocks(nested, level) for level in nested.levels[:2])
    assert set(small) <= set(large) and not {2, 4} & set(large)
    for promise, row in zip(both.promises, nested.profile(x, repeats=1).rows, strict=False):
        assert (promise.parameters, promise.flops) == (row.parameters, row.forward)
        assert promise.parameters <= promise.limit
        with nested.at(promise.level), torch.no_grad():
            assert sum(float(batch()) for batch in batches) / 2 == pytest.approx(promise.loss)
    assert nested.extract("3/10", example=x)(x).shape == (8, 10)


def test_the_loss_is_at_most_that_of_the_same_share_of_every_layer() -> None:
    model, example, batches = trained_mlp()
    fitted = ps.fit_budget(model, example, batches, budget=ps.Budget(parameters=1 / 2))
    uniform = max(
        (r for r in torch.linspace(0.05, 1, 96).tolist() if _size(ps.Width(r)) <= fitted.promises[0].limit),
        key=lambda r: _size(ps.Width(r)),
    )
    nested = ps.nest(copy.deepcopy(model), ps.Width(uniform, order="norm"))
    with nested.at("core"), torch.no_grad():
        model_losses = _losses_of(nested, batches, model)
    assert fitted.promises[0].loss < model_losses


def test_of_ranks_the_same_share_is_that_of_the_spec_and_uses_the_budget() -> None:
    """Layers of different shapes: a share of the rank that pays off would be another one in each."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 64), nn.Linear(64, 16)), torch.randn(8, 16)
    spec = ps.LowRank(1 / 4, where=("*",))
    nested = ps.nest(copy.deepcopy(model), spec)
    budget = ps.Budget(parameters=nested.size("core"))
    plan = NestPlan(model, Switch(("full",)))
    choices = find_choices(plan, [spec], [lambda: model(x).square().mean()])["norm"]
    cost, start = parameter_cost(model, choices), {choice.name: choice.largest for choice in choices}
    uniform = next(iter(candidates(choices, cost, budget.amounts[0], start)))
    assert uniform == {"0": 4, "1": 4, "2": 4} and cost.at(uniform) == nested.size("core")


def _size(spec: ps.Width) -> int:
    return ps.nest(trained_mlp()[0], spec).size("core")


def _losses_of(nested: ps.Nested, batches: Batches, model: nn.Module) -> float:
    """The batches call `model`; run the nested copy in its place."""
    handle = model.register_forward_hook(lambda module, args, output: nested(*args))
    try:
        return sum(float(batch()) for batch in batches) / len(batches)
    finally:
        handle.remove()


def test_worths_by_gradient_activation_and_norm_are_what_they_are_called() -> None:
    model, _, batches = trained_mlp()
    plan = NestPlan(model, Switch(("full",)))
    found = {m: {c.name: c for c in choices} for m, choices in find_choices(plan, [ps.Width(1.0)], batches).items()}
    gradient, energy = torch.zeros(24), torch.zeros(24)
    for batch in batches:
        factor = torch.ones(24, requires_grad=True)

        def gate(module: nn.Module, args: Any, output: Tensor, factor: Tensor = factor) -> Tensor:
            return output * factor

        seen: list[Tensor] = []
        handles = [
            model[1].register_forward_hook(gate),
            model[2].register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0].detach())),
        ]
        gradient += torch.autograd.grad(batch(), factor)[0].pow(2)
        energy += seen[0].pow(2).sum(0) * model[2].weight.detach().pow(2).sum(0)
        for handle in handles:
            handle.remove()
    norm = model[0].weight.pow(2).sum(1) + model[0].bias.pow(2) + model[2].weight.pow(2).sum(0)
    for measure, expected in (("gradient", gradient), ("activation", energy), ("norm", norm.detach())):
        choice = found[measure]["0"]
        torch.testing.assert_close(torch.tensor(choice.worth), expected[list(choice.order)], rtol=1e-4, atol=1e-7)
        assert list(choice.worth) == sorted(choice.worth, reverse=True), "the most valuable units come first"


def test_greedy_removal_finds_the_best_sizes_where_units_cost_alike() -> None:
    """The definition: try all sizes. Units of both layers cost the same, so greedy removal is optimal."""
    worths = {"a": (9.0, 4.0, 3.0, 0.5), "b": (8.0, 2.0, 1.0, 0.25)}
    choices = [UnitChoice(UnitGroup(4, (Producer(n),)), (), (0, 1, 2, 3), worth) for n, worth in worths.items()]
    cost = Cost(8.0, tuple(Product(1.0, (Length(((name, 1),), 0),)) for name in worths), 8.0)
    start = {"a": 4, "b": 4}
    for limit in range(2, 9):
        all_sizes = [dict(zip("ab", pair, strict=True)) for pair in itertools.product(range(1, 5), repeat=2)]
        best = max(
            (sizes for sizes in all_sizes if cost.at(sizes) <= limit),
            key=lambda sizes: sum(sum(worths[n][:k]) for n, k in sizes.items()),
        )
        greedy = list(candidates(choices, cost, limit, start))[2]
        assert greedy == best


def test_only_allowed_sizes_are_chosen_and_all_that_fit_are_given_back() -> None:
    choices = [UnitChoice(UnitGroup(9, (Producer(n),)), (), tuple(range(9)), (1.0,) * 9) for n in "ab"]
    terms = tuple(Product(1.0, (Length(((name, 1),), 0),)) for name in "ab")
    cost = Cost(18.0, terms, 18.0, {"a": (4, 8, 9), "b": (3, 6, 9)})
    for limit in range(7, 19):
        for number, sizes in enumerate(candidates(choices, cost, limit, {"a": 9, "b": 9})):
            assert sizes["a"] in cost.allowed["a"] and sizes["b"] in cost.allowed["b"]
            assert cost.at(sizes) <= limit
            larger = [{**sizes, n: min(s for s in cost.allowed[n] if s > k)} for n, k in sizes.items() if k < 9]
            assert number == 0 or all(cost.at(others) > limit for others in larger)


def test_an_allocation_is_written_into_the_spec_exactly_and_survives_a_file(tmp_path: Any) -> None:
    model, example, batches = trained_mlp()
    fitted = ps.fit_budget(model, example, batches, budget=ps.Budget(parameters=(1 / 4, 1 / 2)))
    small, large = sizes_by_level(fitted)
    assert all(small[name] <= large[name] for name in small)
    nested = ps.nest(copy.deepcopy(model), fitted)
    for level, sizes in zip(nested.levels, (small, large), strict=False):
        with nested.at(level):
            assert {name: nested.model.get_submodule(name).out_features for name in sizes} == sizes
    torch.testing.assert_close(nested(example), model(example))  # the order of units changes no output
    ps.export.save(nested, tmp_path / "saved")
    loaded = ps.export.load(tmp_path / "saved", copy.deepcopy(model))
    for level in nested.levels:
        with nested.at(level), loaded.at(level):
            assert torch.equal(nested(example), loaded(example))


def test_measuring_a_loss_restores_the_weights_when_a_batch_raises() -> None:
    model, _, _ = trained_mlp()
    before = copy.deepcopy(model.state_dict())
    group = UnitGroup(24, (Producer("0"),), (UnitSlice("2.weight", 1),))
    choice = UnitChoice(group, (UnitSlice("2.weight", 1),), tuple(range(24)), (1.0,) * 24)

    def fails() -> Tensor:
        assert not model[2].weight[:, 1:].any(), "the level was not applied"
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        loss_at(model, [choice], {"0": 1}, [fails])
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "limits one of parameters"),
        ({"parameters": 0.5, "flops": 0.5}, "limits one of parameters"),
        ({"parameters": 0}, "must be a share of the whole network or a number"),
        ({"parameters": (0.5, 0.25)}, "must grow, smallest first"),
        ({"flops": ()}, "is empty"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ps.Budget(**arguments)


def test_what_cannot_be_fitted_is_refused_and_the_model_unchanged() -> None:
    model, example, batches = trained_mlp()
    before = copy.deepcopy(model.state_dict())
    fit: Callable[..., Any] = ps.fit_budget
    with pytest.raises(ValueError, match=r"no level fits .* parameters: with one unit"):
        fit(model, example, batches, budget=ps.Budget(parameters=0.01))
    with pytest.raises(ValueError, match="fewer than the budget"):
        fit(model, example, batches, budget=ps.Budget(parameters=10_000_000))
    with pytest.raises(ValueError, match="loss_batches is empty"):
        fit(model, example, [], budget=ps.Budget(parameters=0.5))
    with pytest.raises(ValueError, match=r"loss_batches\[0\]\(\) must return the loss"):
        fit(model, example, [lambda: model(example)], budget=ps.Budget(parameters=0.5))
    with pytest.raises(TypeError, match="spec must be Width, LowRank"):
        fit(model, example, batches, budget=ps.Budget(parameters=0.5), spec=ps.LayerSum("0", copy.deepcopy))
    with pytest.raises(ValueError, match="order must list each of the 24 units"):
        ps.nest(model, ps.Width(1 / 2, order={"0": [1, 2, 3]}))
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())


def test_another_allocation_must_be_clearly_better_than_the_safe_one() -> None:
    assert _clear_best([2.4, 2.3, 2.35], 0.6) == 0  # it closes 6 % of the distance to the whole network
    assert _clear_best([2.4, 2.1, 2.35], 0.6) == 1
    assert _clear_best([float("inf"), 2.1], 0.6) == 1
    assert _clear_best([0.5, 0.4], 0.6) == 1


def test_the_loss_of_a_level_with_batch_norm_is_that_of_the_narrow_network_after_recalibration() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    for norm in (model[1], model[4]):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.running_mean)  # statistics that fit no level
    model.eval()
    x, y = torch.randn(16, 3, 8, 8), torch.randint(4, (16,))
    before = copy.deepcopy(model.state_dict())
    fitted = ps.fit_budget(model, x[:2], [lambda: F.cross_entropy(model(x), y)], budget=ps.Budget(flops=1 / 3))
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    nested = ps.nest(model, fitted, example=x[:2])
    nested.recalibrate("core", [x])
    with torch.no_grad(), nested.at("core"):
        nested.train()  # by the statistics of this batch
        loss = float(F.cross_entropy(nested(x), y))
    assert fitted.promises[0].loss == pytest.approx(loss, rel=1e-4)
