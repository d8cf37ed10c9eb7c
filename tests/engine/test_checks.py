"""What is not a model, an optimizer, a method or a meter is told so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd import CriteriaMeter, Method, methods
from partialsgd.engine.checks import checked, without_our_hooks

MODEL = nn.Sequential(nn.Linear(2, 40), nn.ReLU(), nn.Linear(40, 1))
SGD = torch.optim.SGD(MODEL.parameters(), 0.1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((SGD, MODEL, Method(), None), "the model comes first and must be an nn.Module, got SGD"),
        ((MODEL, [], Method(), None), "must be a torch.optim.Optimizer or a list of them"),
        ((MODEL, [SGD, 3], Method(), None), "must be a torch.optim.Optimizer or a list of them"),
        ((MODEL, SGD, methods.sam, None), r"must be a Method, got .*; call it: methods.sam\(\)"),
        ((MODEL, SGD, Method(), CriteriaMeter), r"must have looks and measure, like ps.CriteriaMeter\(every=50\)"),
        ((MODEL, SGD, Method(), 50), "must have looks and measure"),
    ],
)
def test_what_is_something_else_is_refused(given, message) -> None:
    with pytest.raises(TypeError, match=message):
        checked(*given)


def test_optimizers_come_as_a_list() -> None:
    assert checked(MODEL, SGD, Method(), CriteriaMeter()) == [SGD] == checked(MODEL, (SGD,), Method(), None)


def test_our_hooks_are_taken_off_and_those_of_others_stay() -> None:
    model = nn.Sequential(nn.Linear(2, 40), nn.ReLU(), nn.Linear(40, 1))
    methods.meprop(4).bind(model)
    kept = model[0].register_forward_hook(lambda module, inputs, output: None)
    before = len(model[0]._forward_hooks)
    without_our_hooks(model)
    assert before > 1 and list(model[0]._forward_hooks) == [kept.id]
