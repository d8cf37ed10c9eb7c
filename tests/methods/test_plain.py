"""Plain training converges to the minimum of the quadratic at the rate that theory gives."""

from __future__ import annotations

import torch

from partialsgd import methods
from partialsgd.testing.problems import Quadratic
from tests.methods.training import backward, sgd_of


def test_gradient_descent_contracts_by_one_minus_eta_h() -> None:
    model = Quadratic()
    start = torch.cat([model.a, model.b.flatten()]).detach()
    sgd = sgd_of(model, methods.plain(), 0.05)
    closure = backward(lambda: model(torch.zeros(7)))
    for _ in range(10):
        sgd.step(closure)
    end = torch.cat([model.a, model.b.flatten()]).detach()
    torch.testing.assert_close(end - model.c, (1 - 0.05 * model.h) ** 10 * (start - model.c), rtol=1e-4, atol=1e-5)
