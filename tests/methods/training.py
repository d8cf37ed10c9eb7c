"""Helpers for tests of methods: a driver around SGD, a closure, copies of parameters, a saved state."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from partialsgd import Method, PartialSGD, Step
from partialsgd.testing.problems import PROBLEMS, Problem
from partialsgd.testing.runs import MakeOptimizer, Run, assert_same_bits

BY_NAME = {problem.name: problem for problem in PROBLEMS}
MLP = BY_NAME["mlp"]
X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


def sgd_of(model: nn.Module, method: Method, lr: float = 0.1, *, momentum: float = 0.0, **options: Any) -> PartialSGD:
    return PartialSGD(model, torch.optim.SGD(model.parameters(), lr, momentum=momentum), method, **options)


def backward(loss_of: Callable[..., Tensor]) -> Callable[[], Tensor]:
    """Return a closure of `PartialSGD.step`: the loss, and its backward pass."""

    def closure() -> Tensor:
        loss = loss_of()
        loss.backward()
        return loss

    return closure


def train(sgd: PartialSGD, loss: Callable[[nn.Module, int], Tensor], steps: int = 1) -> list[Step]:
    """Take steps with `loss(model, t)`, which does the backward pass too."""
    return [sgd.step(lambda: loss(sgd.parameters.model, sgd.t)) for _ in range(steps)]


def train_plainly(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[nn.Module, int], Tensor], *steps: int
) -> None:
    for t in steps:
        model.zero_grad()
        loss(model, t)
        optimizer.step()


def assert_close(model: nn.Module, other: nn.Module, **tolerances: float) -> None:
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, **tolerances, msg=lambda message, name=name: f"{name}: {message}")


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def are_equal(model: nn.Module, other: nn.Module) -> bool:
    """True if all parameters are the same to the bit."""
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def load_through_a_file(sources: list[Any], targets: list[Any]) -> None:
    """Load the state of each object into another one, after it went through a file without a pickle."""
    file = io.BytesIO()
    torch.save([source.state_dict() for source in sources], file)
    file.seek(0)
    for target, state in zip(targets, torch.load(file, weights_only=True), strict=True):
        target.load_state_dict(state)


def assert_resumes(
    method: Method, stop: int, steps: int, problem: Problem = MLP, make: MakeOptimizer = torch.optim.AdamW
) -> None:
    """Check that a run that is saved before step `stop` and goes on in another one ends with the same bits."""
    whole, resumed = (Run(problem, make, method, False) for _ in range(2))
    for t in range(stop):
        whole.step(t)
    resumed.load(whole.save())
    random = torch.get_rng_state()
    taken = [whole.step(t) for t in range(stop, steps)]
    expected = whole.tensors()
    torch.set_rng_state(random)
    again = [resumed.step(t) for t in range(stop, steps)]
    assert [(s.level, s.lr, s.backwards) for s in taken] == [(s.level, s.lr, s.backwards) for s in again]
    assert_same_bits(expected, resumed.tensors())


def conv_net() -> nn.Sequential:
    """A network with 54 + 120 weights in layers 0 and 3."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 5))


def conv_loss(model: nn.Module, t: int) -> Tensor:
    """Forward and backward of batch t."""
    loss = (model(torch.randn(7, 1, 4, 4, generator=torch.Generator().manual_seed(t))) - 1).square().mean()
    loss.backward()
    return loss


def nested_loss(model: nn.Module, t: int = 0) -> Tensor:
    """Forward and backward of one batch for the models of `tests.training`."""
    loss = nn.functional.cross_entropy(model(X), Y)
    loss.backward()
    return loss
