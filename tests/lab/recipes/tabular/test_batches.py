"""Batches of rows."""

from __future__ import annotations

import torch

from partialsgd.lab.recipes.tabular.batches import RowBatches
from partialsgd.lab.recipes.tabular.features import Rows
from partialsgd.lab.training.orders import permutation


def rows(count: int) -> Rows:
    """Rows that say their place in every column."""
    places = torch.arange(count)
    return Rows(places.float()[:, None], places[:, None].expand(-1, 3), places[:, None].expand(-1, 0), places.float())


def test_an_epoch_has_each_row_once_in_the_order_of_seed_and_epoch() -> None:
    found = RowBatches(rows(23), size=5, seed=4)
    for epoch in (0, 3, 0):
        made = [found.make(epoch, index) for index in range(len(found))]
        assert torch.equal(torch.cat([batch.labels for batch in made]).long(), permutation(23, 4, epoch, "order"))
        sizes = [len(batch.labels) for batch in made]
        assert sizes == [found.units(epoch, index) for index in range(len(found))] == [4, 5, 4, 5, 5]
        for batch in made:
            assert torch.equal(batch.numbers[:, 0], batch.labels)
            assert torch.equal(batch.crosses, batch.labels.long()[:, None].expand(-1, 3))


def test_a_batch_is_a_function_of_epoch_and_index_whatever_was_made_before() -> None:
    used = RowBatches(rows(40), size=8, seed=0)
    used.make(7, 1), used.make(2, 0)
    for epoch, index in ((2, 3), (7, 1), (0, 0)):
        fresh = RowBatches(rows(40), size=8, seed=0).make(epoch, index)
        assert all(torch.equal(a, b) for a, b in zip(fresh, used.make(epoch, index), strict=True))
    assert not torch.equal(used.make(0, 0).labels, used.make(1, 0).labels)
    assert not torch.equal(used.make(0, 0).labels, RowBatches(rows(40), size=8, seed=1).make(0, 0).labels)
