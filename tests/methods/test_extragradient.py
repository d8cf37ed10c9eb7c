"""Downhill, by eta."""

from __future__ import annotations

import pytest
import torch

from partialsgd import PartialSGD, methods
from partialsgd.testing.problems import Quadratic


def points(method) -> tuple[list[torch.Tensor], Quadratic]:
    model = Quadratic()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.01), method)
    seen = []

    def closure():
        seen.append(torch.cat([model.a, model.b.flatten()]).detach())
        loss = model(torch.zeros(7))
        loss.backward()
        return loss

    sgd.step(closure)
    return seen, model


def test_the_second_gradient_is_taken_downhill() -> None:
    seen, model = points(methods.extragradient(0.03))
    gradient = model.h * (seen[0] - model.c)
    torch.testing.assert_close(seen[1], seen[0] - 0.03 * gradient)
    value = lambda x: float((0.5 * model.h * (x - model.c) ** 2).sum())  # noqa: E731  # shorter than a def
    assert value(seen[1]) < value(seen[0]), "the paper's printed sign would go uphill (E5)"


def test_eta_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="eta must not be negative, got -1"):
        methods.extragradient(-1)
