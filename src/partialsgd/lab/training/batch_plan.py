"""The batches of a step: a function of the seed and the step's position, so that a resumed run repeats them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from partialsgd._util import randomness
from partialsgd.lab.training.task import Batch, Batches


@final
@dataclass(frozen=True)
class StepBatches:
    """The batches of one step on one rank."""

    epoch: int
    position: int
    batches: list[Batch]
    units: int
    """The tokens or images of the step on all ranks together."""
    loss_scale: float
    """The factor that turns a batch's summed loss into its part of the step's mean; DDP averages over ranks."""


@final
@dataclass(frozen=True)
class BatchPlan:
    """Assign `accumulate` batches to each of `ranks` processes per step; the last step of an epoch wraps around."""

    batches: Batches
    accumulate: int = 1
    rank: int = 0
    ranks: int = 1

    def __len__(self) -> int:
        """Steps in an epoch."""
        return -(-len(self.batches) // (self.accumulate * self.ranks))

    def at(self, position: int, move: Callable[[Batch], Batch] = lambda batch: batch) -> StepBatches:
        """Make the batches of the step at a position; `move` puts each of them on the device."""
        epoch, step = divmod(position, len(self))
        size = self.accumulate * self.ranks
        indices = [(step * size + k) % len(self.batches) for k in range(size)]
        own = [move(self.batches.make(epoch, index)) for index in indices[self.rank :: self.ranks]]
        units = sum(self.batches.units(epoch, index) for index in indices)
        return StepBatches(epoch, position, own, units, self.ranks / max(units, 1))


def permutation(count: int, *key: int | str) -> Tensor:
    """A random order of the numbers below `count` that depends only on the key."""
    return torch.randperm(count, generator=randomness.generator(randomness.key(*key)))


@final
class EvenSlices:
    """Slices that divide `count` examples into batches of at most `size`, all of one size or one example less.

    No batch has a single example, because BatchNorm cannot train on one.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.number = count, max(1, min(-(-count // size), count // 2))

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> slice:
        if not 0 <= index < self.number:
            raise IndexError(f"there is no batch {index}; an epoch has {self.number}")
        return slice(self.count * index // self.number, self.count * (index + 1) // self.number)
