"""Parameters and optimizers, also when they change during training."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn, optim

from partialsgd import PartialSGD, masks, methods
from partialsgd.method import Method
from partialsgd.optimizers.param_groups import unwrapped
from partialsgd.testing.problems import PROBLEMS

MLP = next(p for p in PROBLEMS if p.name == "mlp")


def test_a_group_that_is_added_later_is_held_too() -> None:
    model = MLP.model()
    model[0].weight.requires_grad_(False)
    optimizer = optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.1)
    some = torch.zeros(9, 6, dtype=torch.bool)
    some[0] = True
    sgd = PartialSGD(model, optimizer, Method(mask=lambda c: masks.from_tensors(c.parameters, {"0.weight": some})))
    sgd.step(MLP.closure(model, 0))
    model[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"'0\.weight' first"):
        sgd.step(MLP.closure(model, 1))
    optimizer.add_param_group({"params": [model[0].weight]})
    before = model[0].weight.detach().clone()
    sgd.step(MLP.closure(model, 1))
    assert torch.equal(before[~some], model[0].weight[~some]) and not torch.equal(before, model[0].weight)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(ValueError, match=r"not the model's"):
        sgd.step(MLP.closure(model, 2))


def test_a_copy_trains_itself() -> None:
    model = MLP.model()
    sgd = PartialSGD(model, optim.AdamW(model.parameters(), 0.01), methods.random_mask(0.5))
    sgd.step(MLP.closure(model, 0))
    other = copy.deepcopy(sgd)
    before = [p.detach().clone() for p in model.parameters()]
    other.step(MLP.closure(other.parameters.model, 1))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    sgd.step(MLP.closure(model, 1))
    theirs = other.parameters.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(theirs, model.parameters(), strict=True))


class Wrapper(optim.Optimizer):
    """From neither accelerate nor Lightning: what it does is its own."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def state(self):
        return self.optimizer.state

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.9)
        return self.optimizer.step(closure)


def test_a_wrapper_of_unknown_making_is_foreign() -> None:
    model = MLP.model()
    wrapper = Wrapper(optim.SGD(model.parameters(), 0.1))
    assert unwrapped(wrapper) is wrapper
    sgd = PartialSGD(model, wrapper, Method(mask=lambda c: masks.only(c.parameters, ["0"])))
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="Wrapper changed"):
        sgd.step(MLP.closure(model, 0))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
