"""The reference itself, against a step done by hand."""

from __future__ import annotations

import torch

from partialsgd import Method, masks, methods, perturbations
from partialsgd.testing.problems import Quadratic
from tests import reference


def by_hand(point: torch.Tensor, model: Quadratic) -> torch.Tensor:
    return model.h * (point - model.c)


def flat(x: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([x["a"], x["b"].flatten()])


def run(method: Method) -> tuple[torch.Tensor, torch.Tensor, Quadratic]:
    model = Quadratic()
    x = {name: p.detach().clone() for name, p in model.named_parameters()}
    after = reference.step(model, x, method, 0, 0, 0.1, lambda call: call(torch.zeros(7)))
    return flat(x), flat(after), model


def test_plain_masked_dropped_extragradient_and_sam() -> None:
    x, after, model = run(Method())
    torch.testing.assert_close(after, x - 0.1 * by_hand(x, model))
    p = torch.tensor([1.0, 1, 1, 0, 0, 0, 0])
    only_a = lambda c: masks.only(c.parameters, ["a"])  # noqa: E731  # shorter than a def
    x, after, model = run(Method(mask=only_a))
    torch.testing.assert_close(after, x - 0.1 * p * by_hand(x, model))
    x, after, model = run(Method(mask=only_a, perturb=lambda c: perturbations.drop_outside(c.mask)))
    torch.testing.assert_close(after, x - 0.1 * p * by_hand(p * x, model))
    x, after, model = run(methods.extragradient(0.05))
    torch.testing.assert_close(after, x - 0.1 * by_hand(x - 0.05 * by_hand(x, model), model))
    x, after, model = run(methods.sam(0.3))
    g = by_hand(x, model)
    torch.testing.assert_close(after, x - 0.1 * by_hand(x + 0.3 * g / g.norm(), model))
