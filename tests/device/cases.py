"""The cases that are tried on a device: every method in every setting of its test file, and four optimizers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partialsgd import Method, Width, methods, nest
from partialsgd.testing.problems import PROBLEMS, Problem
from partialsgd.testing.runs import MakeOptimizer
from tests.methods.laws import METHODS as OF_PLAIN_MODELS
from tests.methods.laws import OF_LEVELS

METHODS: dict[str, Method] = OF_PLAIN_MODELS | {
    f"{name}_{case}" if case else name: method for name, cases in OF_LEVELS.items() for case, method in cases.items()
}
OPTIMIZERS: dict[str, MakeOptimizer] = {
    # On a GPU foreach is torch's default; on a device from outside it has to be asked for.
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.01, foreach=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1, foreach=True),
    "SGD fused": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.01, fused=True),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1, fused=True),
}
TRIED = [
    (case, optimizer)
    for case in METHODS
    for optimizer in OPTIMIZERS
    if case in methods.NAMES or optimizer == "AdamW fused"
]
"""Every method with every optimizer, and its other settings with the optimizer that most people use on a GPU."""
BY_NAME = {problem.name: problem for problem in PROBLEMS}


def evaluate(model: nn.Module, t: int) -> Tensor:
    """The loss of eight inputs, made on the CPU and moved to the model's device."""
    generator, device = torch.Generator().manual_seed(t), next(model.parameters()).device
    x = torch.randn(8, 6, generator=generator, device="cpu")
    y = torch.randint(3, (8,), generator=generator, device="cpu")
    return F.cross_entropy(model(x.to(device)), y.to(device))


def _family() -> nn.Module:
    layers = [nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 8), nn.Tanh()]
    return nest(nn.Sequential(*layers, nn.Linear(8, 3)), levels={"core": [Width(1 / 4)], "middle": [Width(1 / 2)]})


FAMILY = Problem("family", _family, evaluate, is_random=True)


def problem_for(method: str) -> Problem:
    """The problem that a method is tried on: a nested model if it trains levels."""
    return BY_NAME["mlp"] if method in OF_PLAIN_MODELS else FAMILY
