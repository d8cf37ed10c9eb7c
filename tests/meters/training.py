"""A small classifier and its steps, for the tests of meters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from partialsgd import CriteriaMeter, Method, PartialSGD, Step
from partialsgd.meters import Criteria
from partialsgd.parameters import Parameters
from tests.functions import backward

SEED = 5


def mlp(drop: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.Tanh(), nn.Dropout(drop), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3)]
    return nn.Sequential(*layers)


def batch(t: int, n: int = 20):
    g = torch.Generator().manual_seed(t)
    return torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g)


def closure(model: nn.Module, t: int, n: int = 20):
    x, y = batch(t, n)

    return lambda: backward(F.cross_entropy(model(x), y))


def trained(model: nn.Module, method: Method, meter, rate: float = 0.1, **options) -> PartialSGD:
    return PartialSGD(model, torch.optim.SGD(model.parameters(), rate), method, meter=meter, **options)


def first_step(model: nn.Module, method: Method, meter: CriteriaMeter | None, **options) -> Step:
    return trained(model, method, meter, **options).step(closure(model, 0))


def over_batches(model: nn.Module, batches, *, every: int = 1, **options) -> CriteriaMeter:
    """A meter that measures over batches of its own."""
    return CriteriaMeter(every, batches=batches, loss=lambda b: F.cross_entropy(model(b[0]), b[1]), **options)


def assert_same_norms(a: Criteria, b: Criteria) -> None:
    for name in ("whole", "masked", "perturbed", "inner", "moved"):
        assert getattr(a, name) == getattr(b, name), name


def values(model: nn.Module) -> dict:
    return {name: p.detach().clone() for name, p in Parameters(model).items()}
