"""(seed, epoch) ↦ the order of the examples, and where it is cut into batches."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from partialsgd._util import randomness


def permutation(count: int, *place: int | str) -> Tensor:
    """The numbers below `count` in an order that belongs to this place of a run."""
    return torch.randperm(count, generator=randomness.generator(randomness.key(*place)))


@final
class Cuts:
    """`count` examples cut into batches of at most `size`, all of one size or one example less.

    So the last batch is as large as the others, and no example is left by itself, which BatchNorm could not take: an
    odd one more joins a batch of two.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.number = count, max(1, min(-(-count // size), count // 2))

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> slice:
        if not 0 <= index < self.number:
            raise IndexError(f"there is no batch {index}; an epoch has {self.number}")
        return slice(self.count * index // self.number, self.count * (index + 1) // self.number)

    def size(self, index: int) -> int:
        here = self[index]
        return int(here.stop - here.start)
