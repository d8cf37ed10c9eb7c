"""The gradient of the pruned network moves the dense one, which never stops moving."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

from partialsgd import methods
from partialsgd.methods._shared.pruning import Pruning, largest
from partialsgd.parameters import Parameters
from tests.methods.training import assert_resumes, conv_loss, conv_net, sgd_of, values

LAWS = {
    "": methods.dynamic_pruning(0.6, every=2),
    "rows": methods.dynamic_pruning(0.6, every=3, ramp=4, scope="layer", unit="rows"),
}
IDENTITY = [methods.dynamic_pruning(0.0, every=2)]
REFUSED_SETTINGS = [
    ({"sparsity": 1.0}, r"sparsity must be in \[0, 1\)"),
    ({"every": 0}, "every must be a whole number of at least 1"),
    ({"ramp": -1}, "ramp must be a whole number of at least 0"),
    ({"scope": "row"}, "scope must be one of"),
    ({"unit": "neurons"}, "unit must be one of"),
]


def trained(method, steps: int, lr: float = 0.1):
    """The driver, x̃ at each pass, and x before each step and at the end."""
    model = conv_net()
    sgd = sgd_of(model, method, lr)
    seen, between = [], []

    def closure():
        seen.append(values(model))
        return conv_loss(model, sgd.t)

    for _ in range(steps):
        between.append(values(model))
        assert sgd.step(closure).mask.is_everything
    return sgd, seen, [*between, values(model)]


def kept_by_sorting(weights: list[torch.Tensor], sparsity: float) -> list[torch.Tensor]:
    """By sorting: another way than the method's."""
    sizes = torch.cat([w.abs().flatten() for w in weights])
    order = sizes.argsort(descending=True)[: len(sizes) - round(sparsity * len(sizes))]
    inside = torch.zeros(len(sizes), dtype=torch.bool)
    inside[order] = True
    return [part.view(w.shape) for part, w in zip(inside.split([w.numel() for w in weights]), weights, strict=True)]


def test_the_dense_update_is_by_the_gradient_at_the_pruned_weights() -> None:
    """DPF written out, with refreshes at 0 and 3."""
    _, seen, between = trained(methods.dynamic_pruning(0.7, every=3), 5)
    twin = conv_net()
    for t in range(5):
        if t % 3 == 0:
            kept = kept_by_sorting([twin[0].weight.detach(), twin[3].weight.detach()], 0.7)
        pruned = copy.deepcopy(twin)
        with torch.no_grad():
            for layer, inside in zip((pruned[0], pruned[3]), kept, strict=True):
                layer.weight.mul_(inside)
        for name, p in pruned.named_parameters():
            torch.testing.assert_close(seen[t][name], p.detach())
        conv_loss(pruned, t)
        with torch.no_grad():
            for p, q in zip(twin.parameters(), pruned.parameters(), strict=True):
                p -= 0.1 * q.grad
        for name, p in twin.named_parameters():
            torch.testing.assert_close(between[t + 1][name], p.detach())


def test_dense_weights_never_stop_moving_and_what_was_pruned_can_come_back() -> None:
    _, seen, between = trained(methods.dynamic_pruning(0.6, every=4), 24, lr=1.0)
    for before, after in pairwise(between):
        for name in ("0.weight", "3.weight", "3.bias"):
            assert (before[name] != after[name]).all(), f"a weight of {name} stands still"
    kept = [{name: inside[name] != 0 for name in ("0.weight", "3.weight")} for inside in seen]
    for t, (a, b) in enumerate(pairwise(kept)):
        same = all(torch.equal(a[name], b[name]) for name in a)
        assert same or (t + 1) % 4 == 0, "the choice changes at a refresh only"
    assert any((kept[-1][name] & ~kept[0][name]).any() for name in kept[0]), "nothing came back"


def test_the_share_grows_along_a_cubic_curve_when_the_choice_is_refreshed() -> None:
    _, seen, _ = trained(methods.dynamic_pruning(0.8, every=2, ramp=8), 12)
    zeros = [sum(int((x[name] == 0).sum()) for name in ("0.weight", "3.weight")) for x in seen]
    n = 54 + 120
    shares = [0.0, 0.0, 0.4625, 0.4625, 0.7, 0.7, 0.7875, 0.7875, 0.8, 0.8, 0.8, 0.8]  # 0.8 (1 − (1 − t/8)³)
    assert zeros == [round(share * n) for share in shares]


@pytest.mark.parametrize("steps", [0, 3, 4, 6])
def test_what_is_extracted_is_the_pruned_network(steps: int) -> None:
    sgd, _, between = trained(methods.dynamic_pruning(0.9, every=4), steps)
    small = sgd.extract()
    zeros = sum(int((small[i].weight == 0).sum()) for i in (0, 3))
    assert zeros == round(0.9 * (54 + 120))
    for name, p in small.named_parameters():
        inside = p.detach() != 0
        assert torch.equal(p.detach(), between[-1][name] * inside)
    with sgd.perturbed():
        assert torch.equal(sgd.parameters.model(x := torch.randn(2, 1, 4, 4)), small(x))
    for name, p in sgd.parameters.items():
        assert torch.equal(p.detach(), between[-1][name]), "the dense weights are untouched"


def test_only_what_a_pattern_covers_is_pruned() -> None:
    _, seen, _ = trained(methods.dynamic_pruning(0.5, where=["3"]), 1)
    assert (seen[0]["0.weight"] != 0).all() and int((seen[0]["3.weight"] == 0).sum()) == 60


def test_a_run_stopped_between_two_refreshes_goes_on_with_the_same_choice() -> None:
    assert_resumes(methods.dynamic_pruning(0.6, every=4), 6, 10, make=lambda p: torch.optim.SGD(p, 0.5, momentum=0.9))


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
