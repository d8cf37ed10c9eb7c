"""NaN and infinity: they are found wherever they are, and the gradients are read once at most."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from partialsgd import Branch, Context, Method, PartialSGD, methods, vectors
from partialsgd.engine import nonfinite as nonfinite_module
from partialsgd.engine.nonfinite import are_finite, first_nonfinite
from partialsgd.parameters import Parameters
from tests.training import MLP, by_gradients, start


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 1), ({"clip_norm": 1.0}, 0), ({"nonfinite": "ignore"}, 0), ({"nonfinite": "skip"}, 1)],
)
def test_the_gradients_are_read_once_at_most_and_not_when_a_norm_is_taken(options, expected, monkeypatch) -> None:
    reads = []
    monkeypatch.setattr(nonfinite_module, "are_finite", lambda *a: reads.append(1) or are_finite(*a))
    model, sgd = start(**options)
    sgd.step(MLP.closure(model, 0))
    assert len(reads) == expected


def test_the_message_names_the_step_the_level_and_what_to_do() -> None:
    model, sgd = start(Method(branches=lambda c: [Branch(level="core")]))
    sgd.step(MLP.closure(model, 0))
    with pytest.raises(FloatingPointError, match=r"the loss is NaN.*t = 1, level 'core'.*nonfinite='skip'"):
        sgd.step(lambda: MLP.closure(model, 1)() * math.nan)


def test_a_bad_gradient_at_x_spares_the_second_pass() -> None:
    model, sgd = start(methods.sam(), nonfinite="skip")
    calls = []

    def closure():
        calls.append(1)
        loss = MLP.closure(model, 0)()
        model[0].weight.grad[0, 0] = math.nan
        return loss

    assert sgd.step(closure).skipped and len(calls) == 1


@pytest.mark.parametrize("by_closure", [True, False])
def test_a_bad_number_outside_the_mask_stops_nothing(by_closure: bool) -> None:
    """In `step` the elements outside are not even zeroed."""
    model, sgd = start(methods.random_mask(0.5))
    inside = methods.random_mask(0.5).mask(Context(0, 0, sgd.parameters, {}))["2.weight"]

    def closure(where):
        loss = MLP.closure(model, 0)()
        model[2].weight.grad[where] = math.nan
        return loss

    def step(where):
        return (PartialSGD.step if by_closure else by_gradients)(sgd, lambda: closure(where))

    with pytest.raises(FloatingPointError, match=r"'2\.weight'"):
        step(inside)
    assert not step(~inside).skipped
    assert all(torch.isfinite(p).all() for p in model.parameters())


def net() -> Parameters:
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 3))
    for p in model.parameters():
        p.grad = torch.randn(p.shape)
    return Parameters(model)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.weight", "1.bias"])
def test_one_bad_number_anywhere_is_found_and_named(bad: float, name: str) -> None:
    x = net()
    assert are_finite(x)
    x[name].grad.view(-1)[-1] = bad
    assert not are_finite(x)
    assert first_nonfinite(vectors.current(x)) == name


def with_gradients(*gradients: torch.Tensor) -> Parameters:
    model = nn.ParameterList([nn.Parameter(torch.zeros_like(g)) for g in gradients])
    for p, g in zip(model, gradients, strict=True):
        p.grad = g
    return Parameters(model)


def test_opposite_infinities_and_large_finite_sums_are_told_apart() -> None:
    assert not are_finite(with_gradients(torch.tensor([math.inf, -math.inf])))
    assert are_finite(with_gradients(torch.full((100_000,), 3e38)))
    odd = [torch.zeros(3, dtype=torch.bfloat16), torch.ones(2), torch.ones(0), torch.ones(()), torch.ones(2, 3)]
    assert are_finite(with_gradients(*odd))
    assert not are_finite(with_gradients(*odd, torch.tensor(math.nan)))
    assert are_finite(Parameters(nn.Linear(2, 2))), "no gradients, nothing wrong"
    many = [torch.ones(k % 7 + 1, 100) for k in range(200)]  # summed in several groups
    for k in (0, 100, 199):
        many[k][0, 0] = math.nan
        assert not are_finite(with_gradients(*many, torch.ones(300, 300)))
        many[k][0, 0] = 1.0
    assert are_finite(with_gradients(*many, torch.ones(300, 300)))
