"""Pruning takes exactly as many weights as asked for, the smallest, and a smaller choice lies in a larger one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd.methods._shared.pruning import Pruning, largest
from partialsgd.parameters import Parameters


def net() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(24, 5))
    with torch.no_grad():
        model[0].weight.mul_(2)
    return model


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("unit", ["weights", "rows"])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_the_smallest_are_dropped_and_exactly_so_many(scope: str, unit: str, sparsity: float) -> None:
    model = net()
    kept = Pruning(scope, unit).keep(Parameters(model), sparsity)
    assert kept.keys() == {"0.weight", "3.weight"}, "biases and norms are never pruned"
    weights = {name: model.get_parameter(name).detach().flatten(1) for name in kept}
    inside = {name: entry.flatten(1) for name, entry in kept.items()}
    assert all(kept[name].shape == model.get_parameter(name).shape and kept[name].is_contiguous() for name in kept)
    sizes = {name: w.norm(dim=1) if unit == "rows" else w.abs() for name, w in weights.items()}
    if unit == "rows":
        assert all(torch.equal(m.any(1), m.all(1)) for m in inside.values()), "a row is kept or dropped as a whole"
        inside = {name: m.any(1) for name, m in inside.items()}
    for names in [list(kept)] if scope == "global" else [[name] for name in kept]:
        size, is_in = (torch.cat([part[name].flatten() for name in names]) for part in (sizes, inside))
        assert int((~is_in).sum()) == min(round(sparsity * len(size)), len(size) - 1), "one stays"
        assert is_in.all() or size[is_in].min() > size[~is_in].max()


def test_of_equal_magnitudes_the_first_are_taken_so_a_smaller_choice_lies_in_a_larger() -> None:
    numbers = {"a": torch.tensor([1.0, -1.0, 0.0]), "b": torch.tensor([[1.0, 2.0], [-1.0, 0.0]])}
    in_order = [("b", 1), ("a", 0), ("a", 1), ("b", 0), ("b", 2), ("a", 2), ("b", 3)]
    for k in range(8):
        chosen = largest(numbers, k)
        places = {(name, i) for name, m in chosen.items() for i in m.flatten().nonzero().flatten().tolist()}
        assert places == set(in_order[:k])


def test_a_nan_is_not_dropped_unseen() -> None:
    for count in (1, 4):
        numbers = torch.arange(10.0)
        numbers[:count] = float("nan")
        assert largest({"a": numbers}, 2)["a"][:count].all()


def test_patterns_choose_frozen_weights_too_and_what_cannot_be_pruned_is_named() -> None:
    model = net()
    model[0].weight.requires_grad_(False)
    parameters = Parameters(model)
    assert Pruning().keep(parameters, 0.5).keys() == {"3.weight"}
    assert Pruning(where=("0", "3")).keep(parameters, 0.5).keys() == {"0.weight", "3.weight"}
    with pytest.raises(ValueError, match=r"two or more dimensions are pruned, and none that \('1',\) covers has two"):
        Pruning(where=("1",)).keep(parameters, 0.5)
    with pytest.raises(ValueError, match="no trainable parameter has two"):
        Pruning().keep(Parameters(nn.BatchNorm1d(3)), 0.5)
    with pytest.raises(ValueError, match="matches no parameter"):
        Pruning(where=("head",)).keep(parameters, 0.5)
