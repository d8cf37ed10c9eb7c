"""Small networks, plain and nested, for tests that need any; a step of them, and comparisons to the bit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from partialsgd import LowRank, Method, Nested, PartialSGD, Width, nest
from partialsgd.testing.problems import PROBLEMS, Problem

MLP = next(p for p in PROBLEMS if p.name == "mlp")
LR = 0.05


def start(method: Method | None = None, *, problem: Problem = MLP, **options) -> tuple[nn.Module, PartialSGD]:
    model = problem.model()
    return model, PartialSGD(model, torch.optim.SGD(model.parameters(), LR), method or Method(), **options)


def by_gradients(sgd: PartialSGD, *bodies):
    """One step by `gradients` and `update`, with a micro-batch for each body."""
    for g in sgd.gradients():
        for body in bodies:
            with g:
                body()
    return sgd.update()


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a, b) -> bool:
    """True if two models, or two dicts of tensors, are equal to the bit."""
    a, b = (bits(x) if isinstance(x, nn.Module) else x for x in (a, b))
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def family(*ratios: float, kind: str = "width") -> Nested:
    """Make a small nested model with dropout and BatchNorm; without ratios it has two levels."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 8), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(8, 3))
    spec = Width(ratios or 0.5) if kind == "width" else LowRank(ratios or 0.25)
    return nest(model, spec)
