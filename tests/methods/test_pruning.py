"""Exactly as many as asked for, the largest, nested, and remembered."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd import Context, masks
from partialsgd.methods._shared.pruning import Pruning, chosen_at, drop, forget_choice, largest
from partialsgd.parameters import Parameters


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(24, 5))


def dropped(kept: dict[str, torch.Tensor]) -> int:
    return sum(int((~m).sum()) for m in kept.values())


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9, 0.999])
def test_over_the_network_the_smallest_are_dropped_and_exactly_so_many(sparsity: float) -> None:
    model = net()
    kept = Pruning().keep(Parameters(model), sparsity)
    assert kept.keys() == {"0.weight", "3.weight"}, "biases and norms are never pruned"
    weights = {name: p.detach().abs() for name, p in model.named_parameters() if name in kept}
    assert dropped(kept) == min(round(sparsity * (108 + 120)), 227), "one stays"
    inside = torch.cat([w[kept[name]] for name, w in weights.items()])
    outside = torch.cat([w[~kept[name]] for name, w in weights.items()])
    assert inside.min() > outside.max()


@pytest.mark.parametrize("sparsity", [0.3, 0.9])
def test_in_each_tensor(sparsity: float) -> None:
    model = net()
    with torch.no_grad():
        model[0].weight.mul_(100)
    kept = Pruning("layer").keep(Parameters(model), sparsity)
    for name, inside in kept.items():
        sizes = model.get_parameter(name).detach().abs().flatten()
        count = round(sparsity * len(sizes))
        expected = torch.ones(len(sizes), dtype=torch.bool)
        expected[sizes.argsort()[:count]] = False
        assert torch.equal(inside.flatten(), expected)


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_rows_go_as_a_whole_by_their_norm(scope: str) -> None:
    model = net()
    kept = Pruning(scope, "rows").keep(Parameters(model), 0.4)
    norms = {name: model.get_parameter(name).detach().flatten(1).norm(dim=1) for name in kept}
    rows = {name: inside.flatten(1).any(dim=1) for name, inside in kept.items()}
    for name, inside in kept.items():
        x = model.get_parameter(name)
        assert inside.shape == x.shape and inside.is_contiguous()
        assert torch.equal(rows[name], inside.flatten(1).all(dim=1)), "a row is kept whole or dropped whole"
    if scope == "global":
        assert sum(int((~r).sum()) for r in rows.values()) == round(0.4 * 11)
        groups = [list(kept)]
    else:
        assert [int((~r).sum()) for r in rows.values()] == [round(0.4 * 6), round(0.4 * 5)]
        groups = [[name] for name in kept]
    for names in groups:
        inside = torch.cat([norms[name][rows[name]] for name in names])
        outside = torch.cat([norms[name][~rows[name]] for name in names])
        assert inside.min() > outside.max()


def test_of_equal_magnitudes_the_first_are_taken_so_a_smaller_choice_lies_in_a_larger() -> None:
    numbers = {"a": torch.tensor([1.0, -1.0, 0.0]), "b": torch.tensor([[1.0, 2.0], [-1.0, 0.0]])}
    in_order = [("b", 1), ("a", 0), ("a", 1), ("b", 0), ("b", 2), ("a", 2), ("b", 3)]
    for k in range(8):
        chosen = largest(numbers, k)
        found = {(name, i) for name, m in chosen.items() for i in m.flatten().nonzero().flatten().tolist()}
        assert found == set(in_order[:k])


def test_a_number_that_is_none_is_not_dropped_unseen() -> None:
    for count in (1, 4):
        numbers = torch.arange(10.0)
        numbers[:count] = float("nan")
        assert largest({"a": numbers}, 2)["a"][:count].all()


def test_double_precision_is_kept_and_empty_tensors_are_let_be() -> None:
    tiny = 1e-60 * torch.arange(1.0, 7.0, dtype=torch.float64)
    chosen = largest({"a": tiny, "b": torch.ones(0, 3)}, 1)
    assert chosen["a"].nonzero().flatten().tolist() == [5] and chosen["b"].shape == (0, 3)
    assert largest({}, 0) == {}


def test_patterns_choose_and_what_cannot_be_pruned_is_named() -> None:
    parameters = Parameters(net())
    assert Pruning(where=("3",)).keep(parameters, 0.5).keys() == {"3.weight"}
    with pytest.raises(ValueError, match=r"two or more dimensions, and none that \('1',\) covers has so many"):
        Pruning(where=("1",)).keep(parameters, 0.5)
    with pytest.raises(ValueError, match="no trainable parameter has so many"):
        Pruning().keep(Parameters(nn.BatchNorm1d(3)), 0.5)
    with pytest.raises(ValueError, match="matches no parameter"):
        Pruning(where=("head",)).keep(parameters, 0.5)


def test_what_is_frozen_is_pruned_only_if_named() -> None:
    model = net()
    model[0].weight.requires_grad_(False)
    assert Pruning().keep(Parameters(model), 0.5).keys() == {"3.weight"}
    assert Pruning(
        where=(
            "0",
            "3",
        )
    ).keep(Parameters(model), 0.5).keys() == {"0.weight", "3.weight"}


def test_what_is_remembered_is_chosen_once_and_replaced_as_a_whole() -> None:
    parameters, memory = Parameters(net()), {"other": 3}
    calls = []

    def choosing(*names: str):
        def choose():
            calls.append(names)
            return {name: torch.ones_like(parameters[name], dtype=torch.bool) for name in names}

        return choose

    context = Context(0, 0, parameters, memory)
    assert chosen_at(context, 0, choosing("0.weight", "3.weight")).keys() == {"0.weight", "3.weight"}
    assert chosen_at(context, 0, choosing("3.weight")).keys() == {"0.weight", "3.weight"}
    assert chosen_at(context, 4, choosing("3.weight")).keys() == {"3.weight"}
    assert len(calls) == 2
    forget_choice(context)
    assert memory == {"other": 3}


def test_drop_is_exact_and_leaves_alone_what_is_kept_whole() -> None:
    parameters = Parameters(net())
    inside = torch.rand(5, 24, generator=torch.Generator().manual_seed(0)) < 0.5
    whole = torch.ones(6, 2, 3, 3, dtype=torch.bool)
    perturbation = drop(masks.from_tensors(parameters, {"3.weight": inside, "0.weight": whole}, rest=True))
    assert perturbation.touches == ("3.weight",)
    before = parameters["3.weight"].detach().clone()
    with torch.no_grad():
        perturbation.move(parameters)
    assert torch.equal(parameters["3.weight"], before * inside)
    buffer = parameters.scratch.borrow(inside, torch.int32)
    assert torch.equal(buffer, inside.int()), "the integers are given back for the next step"
