"""Batches of rows, in an order by (seed, epoch)."""

from __future__ import annotations

from typing import final

import torch

from partialsgd.lab.recipes.tabular.features import Rows
from partialsgd.lab.training.orders import Cuts, permutation


@final
class RowBatches:
    """What a training is fed with. All batches of an epoch are cut at once: a step is too short to wait for one."""

    def __init__(self, train: Rows, *, size: int, seed: int) -> None:
        self.train, self.seed, self._cuts = train, seed, Cuts(len(train.labels), size)
        self._made: tuple[int, list[Rows]] | None = None

    def __len__(self) -> int:
        return len(self._cuts)

    def units(self, epoch: int, index: int) -> int:
        return self._cuts.size(index)

    def make(self, epoch: int, index: int) -> Rows:
        if self._made is None or self._made[0] != epoch:
            self._made = (epoch, self._epoch(epoch))
        return self._made[1][index]

    def _epoch(self, epoch: int) -> list[Rows]:
        order = permutation(self._cuts.count, self.seed, epoch, "order")
        sizes = [self._cuts.size(index) for index in range(len(self))]
        columns = (torch.split(column.index_select(0, order), sizes) for column in self.train)
        return [Rows(*parts) for parts in zip(*columns, strict=True)]
