"""Which batches make a step, and which of them are this rank's: a function of the position alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from partialsgd.lab.training.task import Batch, Batches


@final
@dataclass(frozen=True)
class Hand:
    """The batches of one step on one rank."""

    epoch: int
    batches: list[Batch]
    units: int
    """Of all ranks together, by which the summed loss is divided."""
    share: float
    """What the loss of a batch is multiplied by: gradients are averaged over ranks, so that the step is a mean."""


@final
@dataclass(frozen=True)
class Deal:
    """`accumulate` batches for each of `ranks` processes a step; the last step of an epoch begins it again."""

    batches: Batches
    accumulate: int = 1
    rank: int = 0
    ranks: int = 1

    def __len__(self) -> int:
        """Steps in an epoch."""
        return -(-len(self.batches) // (self.accumulate * self.ranks))

    def hand(self, position: int, move: Callable[[Batch], Batch] = lambda batch: batch) -> Hand:
        epoch, step = divmod(position, len(self))
        size = self.accumulate * self.ranks
        places = [(step * size + k) % len(self.batches) for k in range(size)]
        mine = [move(self.batches.make(epoch, place)) for place in places[self.rank :: self.ranks]]
        units = sum(self.batches.units(epoch, place) for place in places)
        return Hand(epoch, mine, units, self.ranks / max(units, 1))
