"""Moments go along where a model is nested late, and where its levels part ways."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partialsgd import Depth, LayerSum, LowRank, Nested, PartialSGD, Width, export, methods, nest
from partialsgd.nested.optimizer_state import carry_to_levels

X, Y = torch.randn(32, 6, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 3
OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "plain SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Sequential(Block(), Block(), Block()), nn.Linear(8, 3)
    )


SPECS = {
    "Width": lambda: Width((0.25, 0.5)),
    "Depth": lambda: Depth(["2"], keep=1 / 3),
    "LowRank": lambda: LowRank(0.25),
}


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for t in range(count):
        optimizer.zero_grad()
        F.cross_entropy(model((X + t).to(next(model.parameters()).dtype)), Y).backward()
        optimizer.step()


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("axis", ["Width", "Depth"])
def test_a_model_that_is_nested_late_goes_on_as_if_it_never_was(axis: str, make) -> None:
    """Trained on at full only, it is the model that was not nested; Width may sum products in another order."""
    plain, late = network().double(), network().double()
    optimizers = [make(model.parameters()) for model in (plain, late)]
    for model, optimizer in zip((plain, late), optimizers, strict=True):
        steps(model, optimizer, 5)
    steps(plain, optimizers[0], 5)
    nested = nest(late, SPECS[axis](), optimizer=optimizers[1], example=X.double())
    steps(nested, optimizers[1], 5)
    found = nested.extract("full", example=X.double()).state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)
        assert axis == "Width" or torch.equal(found[name], value)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("axis", ["Width", "Depth"])
def test_from_the_same_gradient_a_step_moves_the_same_bits(axis: str, make) -> None:
    """The gradient goes along as if it were a moment."""
    plain, late = network(), network()
    optimizers = [make(model.parameters()) for model in (plain, late)]
    for model, optimizer in zip((plain, late), optimizers, strict=True):
        steps(model, optimizer, 3)
        generator = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
    for parameter in late.parameters():
        optimizers[1].state[parameter]["gradient"] = parameter.grad
    nested = nest(late, SPECS[axis](), optimizer=optimizers[1], example=X)
    for parameter in nested.parameters():
        parameter.grad = optimizers[1].state[parameter].pop("gradient") if parameter in optimizers[1].state else None
    for optimizer in optimizers:
        optimizer.step()
    expected, found = dict(plain.named_parameters()), dict(nested.extract("full", example=X).named_parameters())
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


@pytest.mark.parametrize("axis", SPECS)
def test_each_coordinate_keeps_its_moments(axis: str) -> None:
    """Read back through the extracted network, the moments are those that each weight had."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    steps(model, optimizer, 3)
    before = {name: copy.deepcopy(optimizer.state[p]) for name, p in model.named_parameters()}
    nested = nest(model, SPECS[axis](), optimizer=optimizer, example=X)
    assert {p for group in optimizer.param_groups for p in group["params"]} == set(nested.parameters())
    for key in ("exp_avg", "exp_avg_sq"):
        holder = copy.deepcopy(nested)
        with torch.no_grad():
            for held, parameter in zip(holder.parameters(), nested.parameters(), strict=True):
                held.copy_(optimizer.state[parameter][key] if parameter in optimizer.state else 0 * held)
        for name, parameter in holder.extract("full", example=X).named_parameters():
            assert torch.equal(parameter, before[name][key]), name
    new = {name for name, p in nested.named_parameters() if p not in optimizer.state}
    assert all(".U" in name or ".V" in name or ".core." in name or "1/" in name for name in new)
    assert all(float(state["step"]) == 3 for state in optimizer.state.values())


def test_param_groups_stay_and_new_parameters_join_that_of_their_layer() -> None:
    model = network()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    outside = nn.Parameter(torch.zeros(2))
    groups = [{"params": [*decayed, outside], "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    nested = nest(model, LowRank(0.25), optimizer=optimizer, example=X)
    names = {p: name for name, p in nested.named_parameters()} | {outside: "outside"}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert (group["weight_decay"] > 0) == (parameter.dim() > 1 or parameter is outside), names[parameter]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(nested.parameters())) + 1


def test_what_is_not_trained_stays_out_of_the_optimizer() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model[3].parameters(), lr=0.01)
    nested = nest(model, Width(0.5), optimizer=optimizer, example=X)
    held = {p for group in optimizer.param_groups for p in group["params"]}
    assert held == {p for name, p in nested.named_parameters() if name.startswith("model.3.")}


def trained(spec, steps: int = 6) -> tuple[Nested, torch.optim.Optimizer]:
    nested = nest(network(), spec, example=X)
    optimizer = torch.optim.AdamW(nested.parameters(), lr=0.01)
    sgd = PartialSGD(nested, optimizer, methods.alternating())

    def closure() -> Tensor:
        loss = F.cross_entropy(nested(X), Y)
        loss.backward()
        return loss

    for _ in range(steps):
        sgd.step(closure)
    return nested, optimizer


@pytest.mark.parametrize("axis", SPECS)
def test_levels_that_part_ways_are_the_extracted_networks_and_share_nothing(axis: str, tmp_path) -> None:
    nested, _ = trained(SPECS[axis]())
    separate = nested.part_ways(example=X)
    nested.eval()
    separate.eval()
    for level in nested.levels:
        with nested.at(level), separate.at(level):
            torch.testing.assert_close(separate(X), nested(X))
        size = sum(p.numel() for p in separate.parameters(level=level))
        assert separate.size(level) == nested.size(level) == size
        assert type(separate.extract(level, example=X)) is type(nested.extract(level, example=X))
    own = [set(separate.parameters(level=level)) for level in separate.levels]
    assert not set.intersection(*own) and set.union(*own) == set(separate.parameters())
    export.save(separate, tmp_path / "saved")
    again = export.load(tmp_path / "saved", network())
    assert again.levels == separate.levels
    for (name, a), b in zip(separate.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("axis", SPECS)
def test_levels_that_part_ways_go_on_as_the_extracted_networks_alone(axis: str) -> None:
    """One optimizer for all, and one for each extracted network, with the same moments: the same bits."""
    nested, optimizer = trained(SPECS[axis]())
    separate = nested.part_ways(example=X)
    after = torch.optim.AdamW(separate.parameters(), lr=0.01)
    carry_to_levels(nested, optimizer.state, separate, [after])
    alone = {level: copy.deepcopy(separate.model.network(level)) for level in separate.levels}
    for level, plain in alone.items():
        own = torch.optim.AdamW(plain.parameters(), lr=0.01)
        for mine, theirs in zip(plain.parameters(), separate.model.network(level).parameters(), strict=True):
            own.state[mine] = copy.deepcopy(after.state[theirs])
        steps(plain, own, 3)
    sgd = PartialSGD(separate, after, methods.alternating())

    def closure() -> Tensor:
        loss = F.cross_entropy(separate(X + sgd.t // len(alone)), Y)
        loss.backward()
        return loss

    for _ in range(3 * len(alone)):
        sgd.step(closure)
    for level, plain in alone.items():
        for (name, a), b in zip(plain.named_parameters(), separate.model.network(level).parameters(), strict=True):
            assert torch.equal(a, b), f"{level} {name}"


def test_the_state_of_a_level_is_that_of_its_weights() -> None:
    """The core has the state of U and V, the full network that of W, and the largest of their counters."""
    nested, optimizer = trained(LowRank(0.25), steps=5)
    separate = nested.part_ways(example=X)
    after = torch.optim.AdamW(separate.parameters(), lr=0.01)
    carry_to_levels(nested, optimizer.state, separate, [after])
    layer = nested.model[2][0].up
    u, v = (
        after.state[separate.model.network("core")[2][0].up[0].weight],
        after.state[separate.model.network("core")[2][0].up[1].weight],
    )
    w = after.state[separate.model.network("full")[2][0].up.weight]
    for found, source in ((u, layer.U0), (v, layer.V0), (w, layer.W)):
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(found[key], optimizer.state[source][key].view_as(found[key]))
    assert (float(u["step"]), float(w["step"])) == (5, 3)


def test_a_sum_of_layers_has_the_moments_of_neither() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with pytest.raises(NotImplementedError, match="build a new optimizer"):
        nest(model, LayerSum(["3"], make=lambda layer: nn.Linear(8, 3)), optimizer=optimizer)
    assert type(model[3]) is nn.Linear, "the model is unchanged"
