"""A weight that is known before it is made: looking costs nothing, using it is using the product."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partialsgd import LowRank, Nested, nest
from partialsgd.nested.layers.lazy_weight import LazyWeight


class Made:
    """Counts how often the weight is made."""

    def __init__(self, *shape: int) -> None:
        self.values, self.count = torch.randn(*shape, requires_grad=True), 0

    def __call__(self) -> Tensor:
        self.count += 1
        return self.values * 1

    def weight(self) -> LazyWeight:
        return LazyWeight(self.values, self.values.shape, self)


def test_what_is_known_is_said_without_making_it() -> None:
    made = Made(3, 4)
    weight = made.weight()
    assert isinstance(weight, Tensor)
    assert weight.dtype is torch.float32 and weight.shape == weight.size() == (3, 4) and weight.size(1) == 4
    assert weight.device == made.values.device and weight.ndim == weight.dim() == 2 and weight.numel() == 12
    assert weight.is_floating_point() and not weight.is_cuda
    assert made.count == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w + 1,
        lambda w: 1 - w,
        lambda w: w @ torch.ones(4),
        lambda w: w.t(),
        lambda w: w[0],
        lambda w: F.linear(torch.ones(2, 4), w),
        lambda w: torch.cat([w, w]),
        lambda w: w.clone(),
        lambda w: w.double(),
        lambda w: torch.stack([w.sum()]),
    ],
)
def test_whatever_uses_it_gets_the_numbers_and_gives_the_gradient(use) -> None:
    made = Made(3, 4)
    ours, theirs = use(made.weight()), use(made.values)
    assert type(ours) is Tensor and torch.equal(ours, theirs)
    (a,) = torch.autograd.grad(ours.sum(), made.values)
    (b,) = torch.autograd.grad(theirs.sum(), made.values)
    assert torch.equal(a, b)


def test_detached_and_copied_it_is_an_ordinary_tensor() -> None:
    made = Made(3, 4)
    weight = made.weight()
    for ordinary in (weight.detach(), weight.data, copy.deepcopy(weight.detach()), weight.clone().detach()):
        assert type(ordinary) is Tensor and torch.equal(ordinary, made.values) and not ordinary.requires_grad
    assert weight.tolist() == made.values.tolist() and len(weight) == 3
    assert torch.equal(torch.as_tensor(weight.detach().numpy()), made.values.detach())


def family(trained: bool = True) -> tuple[Nested, nn.Module]:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].weight.requires_grad_(trained)
    return nest(model, LowRank(1 / 2, where="0")), model[0]


@pytest.mark.parametrize("level", ["core", "full"])
@pytest.mark.parametrize("trained", [True, False])
def test_a_layer_says_whether_its_weight_is_trained(level: str, trained: bool) -> None:
    nested, _ = family(trained)
    with nested.at(level):
        assert nested.model[0].weight.requires_grad is trained


def test_it_is_the_weight_of_the_level_at_which_it_was_asked_for() -> None:
    nested, _ = family()
    layer = nested.model[0]
    with nested.at("core"):
        weight = layer.weight
    assert torch.equal(weight.detach(), layer.weight_at("core"))
    assert not torch.equal(layer.weight.detach(), layer.weight_at("core"))


def test_a_parameter_can_be_made_of_it() -> None:
    """As code does that builds a layer from the weights of another."""
    nested, _ = family()
    parameter = nn.Parameter(nested.model[0].weight.detach())
    assert torch.equal(parameter, nested.model[0].weight_at("full")) and parameter.requires_grad
    with torch.no_grad():
        fresh = nn.Linear(6, 8)
        fresh.weight.copy_(nested.model[0].weight)
    assert torch.equal(fresh.weight, nested.model[0].weight_at("full"))


def test_autocast_and_no_grad_reach_what_is_made() -> None:
    nested, _ = family()
    layer, x = nested.model[0], torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.linear(x, layer.weight).dtype is torch.bfloat16
    with torch.no_grad():
        assert not (layer.weight * 2).requires_grad
