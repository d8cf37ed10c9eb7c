"""Gradients over losses of our own: their mean, at x̃, and x as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd import Context, Method, perturbations
from partialsgd.engine.passing import Passing
from partialsgd.engine.step import begin
from partialsgd.optimizers.grad_scaler import Scaler
from partialsgd.parameters import Parameters


def test_over_several_losses_it_is_the_mean_at_the_perturbed_point() -> None:
    model = nn.ParameterDict({"x": nn.Parameter(torch.tensor([1.0, 2.0])), "unused": nn.Parameter(torch.ones(1))})
    parameters = Parameters(model)
    passing = Passing(model, parameters, Scaler(None, []))
    step = begin(Method(), Context(0, 0, parameters, {}), {}, lambda: None)
    halved = perturbations.function(["x"], lambda ps: ps["x"].mul_(0.5))
    losses = [lambda k=k: (k * model["x"].square()).sum() for k in (1.0, 3.0)]
    found = passing.over(step, losses, halved)
    assert torch.equal(found["x"], torch.tensor([2.0, 4.0])) and "unused" not in found, "2 k x / 2, on average"
    assert model["x"].tolist() == [1.0, 2.0] and model["x"].grad is None and step.backwards == 2


@pytest.mark.parametrize("wrong", [lambda x: 1.0, lambda x: x * 2, lambda x: x.detach().sum(), lambda x: None])
def test_what_is_no_loss_is_refused_and_x_is_x_again(wrong) -> None:
    model = nn.ParameterDict({"x": nn.Parameter(torch.tensor([1.0, 2.0]))})
    passing = Passing(model, Parameters(model), Scaler(None, []))
    step = begin(Method(), Context(0, 0, passing.parameters, {}), {}, lambda: None)
    zero = perturbations.function(["x"], lambda ps: ps["x"].zero_())
    with pytest.raises(ValueError, match=r"loss\(batch\) must return the loss as one number"):
        passing.over(step, [lambda: wrong(model["x"])], zero)
    assert model["x"].tolist() == [1.0, 2.0]
