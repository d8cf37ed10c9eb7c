"""Which batches make a step, on which rank."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from partialsgd.lab.training.batch_plan import Deal


class Named:
    """Batches that are their own (epoch, index), with as many units as they are far."""

    def __init__(self, count: int) -> None:
        self.count, self.made = count, list[Any]()

    def __len__(self) -> int:
        return self.count

    def units(self, epoch: int, index: int) -> int:
        return 10 * epoch + index + 1

    def make(self, epoch: int, index: int) -> tuple[int, int]:
        assert 0 <= index < self.count
        self.made.append((epoch, index))
        return epoch, index


@pytest.mark.parametrize("count", [1, 4, 5, 6, 7])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_an_epoch_shows_each_batch_and_the_ranks_share_them(count: int, accumulate: int, ranks: int) -> None:
    deals = [Deal(Named(count), accumulate, rank, ranks) for rank in range(ranks)]
    steps, size = len(deals[0]), accumulate * ranks
    assert steps == -(-count // size)
    for epoch in (0, 3):
        seen = Counter[tuple[int, int]]()
        for step in range(steps):
            hands = [deal.hand(epoch * steps + step) for deal in deals]
            together = [batch for hand in hands for batch in hand.batches]
            assert all(len(hand.batches) == accumulate and hand.epoch == epoch for hand in hands)
            units = sum(Named(count).units(*batch) for batch in together)
            assert {(hand.units, hand.share) for hand in hands} == {(units, ranks / units)}
            seen.update(together)
        assert seen.keys() == {(epoch, index) for index in range(count)}
        assert sum(seen.values()) == steps * size
        assert max(seen.values()) - min(seen.values()) <= 1  # the last step begins the epoch again


def test_the_step_of_two_ranks_is_that_of_one_which_accumulates() -> None:
    both = [Deal(Named(6), 1, rank, 2).hand(4).batches for rank in (0, 1)]
    assert sorted(both[0] + both[1]) == sorted(Deal(Named(6), 2).hand(4).batches)


def test_only_ones_own_batches_are_made_and_each_is_moved() -> None:
    batches = Named(6)
    hand = Deal(batches, 2, 1, 2).hand(0, move=lambda batch: ("moved", batch))
    assert batches.made == [(0, 1), (0, 3)]
    assert hand.batches == [("moved", (0, 1)), ("moved", (0, 3))]


def test_a_step_without_units_has_a_share_that_is_a_number() -> None:
    class Empty(Named):
        def units(self, epoch: int, index: int) -> int:
            return 0

    assert Deal(Empty(2)).hand(0).share == 1.0
