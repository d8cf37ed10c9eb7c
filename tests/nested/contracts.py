"""Every method that trains a nested network, through every law, on nested models of each kind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from partialsgd import Depth, LayerSum, LowRank, Nested, OutputSum, PartialSGD, Width, methods, nest
from partialsgd.testing.contracts import *  # noqa: F403  # the laws: pytest collects them here
from partialsgd.testing.problems import Problem
from tests.methods.laws import OF_LEVELS

COMPOSED = {
    "sam": lambda: methods.sam(0.1, interval=2),
    "top_k": lambda: methods.top_k(0.3),
    "compressed": lambda: methods.compressed_gradient(0.3),
}
"""The methods that alternating is composed with."""


def layers() -> nn.Sequential:
    body = [nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 7), nn.Tanh()]
    return nn.Sequential(*body, nn.Linear(7, 3))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        y: torch.Tensor = self.head(x)
        return y


HUGGING_FACE = {
    "low_rank": lambda: nest(layers(), LowRank(1 / 4)),
    "low_rank_own": lambda: nest(layers(), LowRank(1 / 4, full="own")),
    "width": lambda: nest(layers(), Width(1 / 2)),
    "width_shared": lambda: nest(layers(), Width(1 / 2), norms="shared"),
    "depth": lambda: nest(Residual(), Depth("blocks", keep=1)),
    "layer_sum": lambda: nest(layers(), LayerSum(("0", "4"), lambda old: nn.Linear(old.in_features, old.out_features))),
    "wide_and_deep": lambda: nest(OutputSum(core=layers(), extension=nn.Linear(6, 3))),
    "three_levels": lambda: nest(
        Residual(),
        levels={
            "core": [Depth("blocks", keep=1), LowRank(1 / 6, where="blocks.*.1")],
            "middle": [Depth("blocks", keep=2), LowRank(1 / 2, where="blocks.*.1")],
        },
    ),
}
WITHOUT_NOISE = ("depth", "three_levels")


def evaluate(model: nn.Module, t: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(t)
    x, y = torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
    return F.cross_entropy(model(x), y)


@pytest.fixture(params=HUGGING_FACE)
def problem(request: pytest.FixtureRequest) -> Problem:
    return Problem(request.param, HUGGING_FACE[request.param], evaluate, is_random=request.param not in WITHOUT_NOISE)


@pytest.fixture(
    params=[f"{name} {case}" for name, cases in OF_LEVELS.items() for case in cases]
    + [f"compose {c}" for c in COMPOSED]
)
def method(request: pytest.FixtureRequest) -> Any:
    name, _, case = request.param.partition(" ")
    if name == "compose":
        return methods.compose(methods.alternating(), COMPOSED[case]())
    return OF_LEVELS[name][case]


OPTIMIZERS = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.01, weight_decay=0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_outside_a_level_is_untouched_over_50_alternating_steps(problem: Problem, name: str) -> None:
    """Parameters and optimizer state, to the bit; the core moves at every step, the rest of a level at its own."""
    nested = problem.model()
    assert isinstance(nested, Nested)
    optimizer = OPTIMIZERS[name](nested.parameters())
    sgd = PartialSGD(nested, optimizer, methods.alternating())
    levels = tuple(reversed(nested.levels))
    inside = {level: set(nested.parameters(level=level)) for level in levels}
    outside = {level: [p for p in nested.parameters() if p not in inside[level]] for level in levels}
    more = {level: [p for p in outside["core"] if p in inside[level]] for level in levels}
    assert inside["core"] and all(more[level] for level in levels[:-1])
    for t in range(50):
        level = levels[t % len(levels)]
        before = copy.deepcopy([(p.detach(), optimizer.state.get(p, {})) for p in outside[level]])
        moving = copy.deepcopy([[p.detach() for p in part] for part in (inside["core"], more[level])])
        assert sgd.step(problem.closure(nested, t)).level == level
        for p, (value, state) in zip(outside[level], before, strict=True):
            assert torch.equal(p, value)
            now = optimizer.state.get(p, {})
            assert now.keys() == state.keys()
            assert all(
                torch.equal(torch.as_tensor(now[k]), torch.as_tensor(state[k])) for k in state if state[k] is not None
            )
        for part, old in zip((inside["core"], more[level]), moving, strict=True):
            assert not part or any(not torch.equal(p, q) for p, q in zip(part, old, strict=True))
