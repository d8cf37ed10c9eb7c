"""A random share moves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd import methods
from tests.methods.training import backward, sgd_of

LAWS = {"": methods.random_mask(0.4)}
IDENTITY = [methods.random_mask(1.0)]
REFUSED_SETTINGS = [
    ({"keep": keep}, r"keep must be in \(0, 1\].*1 is plain training") for keep in (0.0, -0.1, 1.1, float("nan"))
]


def start(method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 60), nn.Linear(60, 1))
    return model, sgd_of(model, method)


def closure(model):
    return backward(lambda: model(torch.ones(2, 50)).sum())


def test_the_share_and_a_new_draw_at_every_step() -> None:
    model, sgd = start(methods.random_mask(0.3))
    first, second = (sgd.step(closure(model)).mask for _ in range(2))
    for mask in (first, second):
        assert mask["0.weight"].float().mean() == pytest.approx(0.3, abs=0.03)
    both = (first & second)["0.weight"].float().mean()
    assert both == pytest.approx(0.09, abs=0.02), "independent from step to step"


def test_where_limits_the_mask_and_the_rest_always_moves() -> None:
    model, sgd = start(methods.random_mask(0.3, where=("0.weight",)))
    mask = sgd.step(closure(model)).mask
    assert mask["0.bias"] is True and mask["1.weight"] is True
