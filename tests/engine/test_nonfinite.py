"""When the gradients are looked at, and how often."""

from __future__ import annotations

import math

import pytest
import torch

from partialsgd import Branch, Context, Method, PartialSGD, methods
from partialsgd import vectors as vectors_module
from partialsgd.testing.problems import PROBLEMS

MLP = next(p for p in PROBLEMS if p.name == "mlp")


def start(method: Method | None = None, **options):
    model = MLP.model()
    return model, PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method or Method(), **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, 1), ({"clip_norm": 1.0}, 0), ({"nonfinite": "ignore"}, 0), ({"nonfinite": "skip"}, 1)],
)
def test_one_look_at_most_and_none_when_a_norm_is_taken(options, expected, monkeypatch) -> None:
    looks = []
    original = vectors_module.are_finite
    monkeypatch.setattr(vectors_module, "are_finite", lambda *a: looks.append(1) or original(*a))
    model, sgd = start(**options)
    sgd.step(MLP.closure(model, 0))
    assert len(looks) == expected


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


def test_a_bad_number_outside_the_mask_stops_nothing() -> None:
    model, sgd = start(methods.random_mask(0.5))
    seen = []

    def closure():
        loss = MLP.closure(model, 0)()
        outside = ~sgd.method.mask(seen[0])["2.weight"]
        model[2].weight.grad[outside] = math.nan
        return loss

    for g in sgd.gradients():
        seen.append(sgd._pending.context)
        with g:
            closure()
    assert not sgd.update().skipped
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_a_bad_number_outside_the_mask_stops_no_step_either() -> None:
    """In `step` the gradient is masked only when something in it is not finite."""
    model, sgd = start(methods.random_mask(0.5))
    inside = methods.random_mask(0.5).mask(Context(0, 0, sgd.parameters, {}))["2.weight"]

    def closure(where):
        loss = MLP.closure(model, 0)()
        model[2].weight.grad[where] = math.nan
        return loss

    with pytest.raises(FloatingPointError, match=r"'2\.weight'"):
        sgd.step(lambda: closure(inside))
    assert not sgd.step(lambda: closure(~inside)).skipped
    assert all(torch.isfinite(p).all() for p in model.parameters())
