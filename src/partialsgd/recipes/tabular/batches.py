"""Batches of rows, in an order by (seed, epoch)."""

from __future__ import annotations

from typing import final

from partialsgd.recipes.orders import Cuts, permutation
from partialsgd.recipes.tabular.features import Rows


@final
class RowBatches:
    """What a training is fed with. The rows of an epoch are put in order at once; a batch is then a piece of them."""

    def __init__(self, train: Rows, *, size: int, seed: int) -> None:
        self.train, self.seed, self._cuts = train, seed, Cuts(len(train.labels), size)
        self._ordered: tuple[int, Rows] | None = None

    def __len__(self) -> int:
        return len(self._cuts)

    def units(self, epoch: int, index: int) -> int:
        return self._cuts.size(index)

    def make(self, epoch: int, index: int) -> Rows:
        if self._ordered is None or self._ordered[0] != epoch:
            order = permutation(self._cuts.count, self.seed, epoch, "order")
            self._ordered = (epoch, Rows(*(column.index_select(0, order) for column in self.train)))
        here = self._cuts[index]
        return Rows(*(column[here] for column in self._ordered[1]))
