"""Optimizers from elsewhere."""

from __future__ import annotations

import pytest
import pytorch_optimizer
import torch
from torch import nn, optim

from partialsgd import Method, PartialSGD, masks
from partialsgd.optimizers import capabilities as probes
from partialsgd.optimizers.third_party import Undo
from partialsgd.parameters import Parameters
from partialsgd.testing.problems import PROBLEMS

MLP = next(p for p in PROBLEMS if p.name == "mlp")


class Decaying(optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.9)
        return super().step(closure)


def test_an_element_mask_alone_is_no_proof() -> None:
    """At t = 0 nothing is wholly outside, so nothing can be compared; at t = 1 it is."""
    model = MLP.model()
    some = torch.eye(9, 6, dtype=torch.bool)

    def mask(context):
        if context.t == 0:
            return masks.everything(context.parameters)
        return masks.from_tensors(
            context.parameters, {"0.weight": some if context.t == 1 else True}, rest=context.t == 1
        )

    sgd = PartialSGD(model, Decaying(model.parameters(), 0.1), Method(mask=mask))
    sgd.step(MLP.closure(model, 0))
    sgd.step(MLP.closure(model, 1))
    with pytest.raises(RuntimeError, match="Decaying changed"):
        sgd.step(MLP.closure(model, 2))
    assert sgd.t == 2


def test_a_good_foreign_optimizer_may_decay() -> None:
    model = MLP.model()
    sgd = PartialSGD(
        model,
        pytorch_optimizer.Lion(model.parameters(), 0.01),
        Method(mask=lambda c: masks.only(c.parameters, ["0"]) if c.t else masks.everything(c.parameters)),
        outside="decay",
    )
    sgd.step(MLP.closure(model, 0))
    before = model[2].weight.detach().clone()
    sgd.step(MLP.closure(model, 1))
    assert torch.equal(before, model[2].weight)


@pytest.mark.parametrize(
    "name", ["ScheduleFreeSGD", "ScheduleFreeAdamW", "MADGRAD", "Ranger", "Lamb", "AggMo", "AdaShift"]
)
def test_state_that_starts_elsewhere_couples_or_hides_is_refused_for_elements(name: str) -> None:
    optimizer = getattr(pytorch_optimizer, name)([nn.Parameter(torch.zeros(4, 4))], lr=0.01)
    assert probes.why_not_coordinate_wise(optimizer, optimizer.param_groups[0])


@pytest.mark.parametrize("name", ["Lion", "Tiger"])
def test_ordinary_ones_are_not(name: str) -> None:
    optimizer = getattr(pytorch_optimizer, name)([nn.Parameter(torch.zeros(4, 4))], lr=0.01)
    assert probes.why_not_coordinate_wise(optimizer, optimizer.param_groups[0]) is None


class Centring(optim.SGD):
    """Couples the columns of a row."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad -= p.grad.mean(-1, keepdim=True)
        return super().step(closure)


def test_coupling_along_either_side_is_found() -> None:
    optimizer = Centring([nn.Parameter(torch.zeros(4, 4))], 0.1)
    assert "couples" in probes.why_not_coordinate_wise(optimizer, optimizer.param_groups[0])


def test_undo_goes_back_to_the_bit() -> None:
    model = MLP.model()
    optimizer = optim.AdamW(model.parameters(), 0.1)
    PartialSGD(model, optimizer).step(MLP.closure(model, 0))
    undo = Undo(Parameters(model), [optimizer])
    before = [p.detach().clone() for p in model.parameters()], optimizer.state[model[0].weight]["exp_avg"].clone()
    PartialSGD(model, optimizer).step(MLP.closure(model, 1))
    optimizer.param_groups[0]["lr"] = 5.0
    undo.roll_back()
    assert all(torch.equal(a, b) for a, b in zip(before[0], model.parameters(), strict=True))
    assert torch.equal(before[1], optimizer.state[model[0].weight]["exp_avg"])
    assert optimizer.param_groups[0]["lr"] == 0.1
