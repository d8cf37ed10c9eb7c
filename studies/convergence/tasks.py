"""The tasks on which the criteria are measured: examples, a network, a number of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@final
@dataclass(frozen=True)
class Examples:
    """The training examples, and those that the network is tried on after the last step."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int

    def batch(self, size: int, seed: int, t: int) -> Tensor:
        """The indices of the examples of step t; each epoch has its own order, and there is no state to save."""
        epoch, place = divmod(t, self.steps_per_epoch(size))
        order = torch.Generator().manual_seed(1000 * seed + epoch)
        return torch.randperm(len(self.x), generator=order)[place * size : (place + 1) * size]

    def steps_per_epoch(self, size: int) -> int:
        return len(self.x) // size


@final
@dataclass(frozen=True)
class Problem:
    """An untrained network with its optimizer, its loss and its final scores."""

    model: nn.Module
    optimizer: Optimizer
    loss: Callable[[Tensor, Tensor], Tensor]
    reached: Callable[[Examples], dict[str, float]]


@final
@dataclass(frozen=True)
class Task:
    name: str
    title: str
    folder: str
    """The name of its data inside the folder of `--data`."""
    load: Callable[[Path], Examples]
    prepare: Callable[[Examples, int, float], Problem]
    steps: int
    batch: int
    rate: float
    warm_up: int
    every: int
    """The meter measures the first of so many steps of a level."""
    large: int
    """Examples over which gradients are taken at a few points of the run."""
    groups: Mapping[str, Sequence[str]]
    """Groups of layers that are also measured by themselves."""
    seeds: Sequence[int]

    @property
    def settings(self) -> str:
        warm_up = f" after {self.warm_up} steps of warm-up" if self.warm_up else ""
        return (
            f"{self.title}; {self.steps} steps of {self.batch} examples, learning rate {self.rate}{warm_up}; measured "
            f"at every {self.every}th step of a level, and at five points of the second half over {self.large} examples"
        )
