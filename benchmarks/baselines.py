"""The fastest form we know of what is compared with: plain torch, not a line of partialsgd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# So small that the numbers stay what they are through thousands of steps: a loss that reaches zero
# would bring denormal numbers, and those are slow.
RATE = 1e-7


@final
@dataclass(frozen=True)
class Training:
    """A model, its optimizer and one batch."""

    model: nn.Module
    optimizer: Optimizer
    forward: Callable[[], Tensor]
    """The loss."""
    batch: int

    @cached_property
    def closure(self) -> Callable[[], Tensor]:
        """Forward and backward."""

        def run() -> Tensor:
            loss = self.forward()
            loss.backward()
            return loss

        return run

    def step(self) -> Tensor:
        """The raw loop."""
        loss = self.closure()
        self.update()
        return loss

    def update(self) -> None:
        """The part of the raw loop after backward."""
        self.optimizer.step()
        for parameter in self.parameters:  # optimizer.zero_grad(set_to_none=True) does the same, three times slower
            parameter.grad = None

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())


def after_backward(training: Training) -> Callable[[], None]:
    """Makes a gradient; what is returned is what remains to be done with it."""
    training.closure()
    return training.update


def fused_adam(parameters: Sequence[nn.Parameter]) -> Optimizer:
    return torch.optim.Adam(parameters, lr=RATE, fused=True)


def mlp(*, batch: int, width: int = 1000, depth: int = 6, classes: int = 10) -> Training:
    """`depth` layers; with the default width 5.0 M parameters, of which 99.8 % are in five square matrices."""
    return layers(*[width] * depth, classes, batch=batch)


def layers(*sizes: int, batch: int) -> Training:
    """Linear layers of these sizes, with ReLU between them."""
    torch.manual_seed(0)
    hidden = [layer for given, made in pairwise(sizes[:-1]) for layer in (nn.Linear(given, made), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(sizes[-2], sizes[-1]))
    return _training(model, torch.randn(batch, sizes[0]), torch.randint(sizes[-1], (batch,)))


def many_small_tensors(count: int = 300) -> Training:
    """A residual network of 16 x 16 layers, each a weight and a bias: nothing but overhead."""
    torch.manual_seed(0)
    model = nn.Sequential(*[_Residual(16, 2 / count) for _ in range(count // 2)])
    return _training(model, torch.randn(8, 16), torch.randint(16, (8,)))


def only_these(training: Training, parameters: Sequence[nn.Parameter]) -> Training:
    """The same training, of which the optimizer knows the given parameters only."""
    return Training(training.model, fused_adam(parameters), training.forward, training.batch)


def other_sam(training: Training, rho: float) -> Callable[[], None]:
    """A step of pytorch_optimizer's SAM, in the form its documentation gives; the base is fused Adam here too."""
    from pytorch_optimizer import SAM  # slow to import, and needed for this alone

    optimizer = SAM(training.parameters, torch.optim.Adam, rho=rho, lr=RATE, fused=True)

    def closure() -> Tensor:
        optimizer.zero_grad()
        return training.closure()

    def step() -> None:
        closure()
        optimizer.step(closure)

    return step


@final
class _Residual(nn.Module):
    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.layer(x), alpha=self.scale)


def _training(model: nn.Module, inputs: Tensor, targets: Tensor) -> Training:
    criterion = nn.CrossEntropyLoss()

    def forward() -> Tensor:
        loss: Tensor = criterion(model(inputs), targets)
        return loss

    return Training(model, fused_adam(list(model.parameters())), forward, len(inputs))


if __name__ == "__main__":  # python -m benchmarks.baselines: the baselines by themselves
    from benchmarks.harness import Track, ready

    raced = {f"MLP of 5 M, batch {batch}": ready(mlp(batch=batch).step) for batch in (32, 256)}
    raced["300 small tensors"] = ready(many_small_tensors().step)
    for name, seconds in Track().race("raw loops", raced).medians().items():
        print(f"{name}: {seconds * 1e3:.1f} ms")
