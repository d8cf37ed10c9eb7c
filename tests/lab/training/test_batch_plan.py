"""Which batches make a step, on which rank."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from partialsgd._util import randomness
from partialsgd.lab.training import recipe_tools as rates
from partialsgd.lab.training.batch_plan import BatchPlan, EvenSlices, permutation


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
    plans = [BatchPlan(Named(count), accumulate, rank, ranks) for rank in range(ranks)]
    steps, size = len(plans[0]), accumulate * ranks
    assert steps == -(-count // size)
    for epoch in (0, 3):
        seen = Counter[tuple[int, int]]()
        for step in range(steps):
            steps_of_ranks = [plan.at(epoch * steps + step) for plan in plans]
            together = [batch for step in steps_of_ranks for batch in step.batches]
            assert all(len(step.batches) == accumulate and step.epoch == epoch for step in steps_of_ranks)
            units = sum(Named(count).units(*batch) for batch in together)
            assert {(step.units, step.loss_scale) for step in steps_of_ranks} == {(units, ranks / units)}
            seen.update(together)
        assert seen.keys() == {(epoch, index) for index in range(count)}
        assert sum(seen.values()) == steps * size
        assert max(seen.values()) - min(seen.values()) <= 1  # the last step begins the epoch again


def test_a_permutation_belongs_to_its_place_alone() -> None:
    before = torch.get_rng_state()
    first = permutation(100, 3, 7, "order")
    assert torch.equal(before, torch.get_rng_state()), "the global generator stays"
    assert torch.equal(first, permutation(100, 3, 7, "order"))
    assert sorted(first.tolist()) == list(range(100))
    for other in ((4, 7, "order"), (3, 8, "order"), (3, 7, "validation")):
        assert not torch.equal(first, permutation(100, *other))
    generator = torch.Generator().manual_seed(randomness.key(3, 7, "order"))
    assert torch.equal(first, torch.randperm(100, generator=generator))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 64, 65, 129, 1000])
@pytest.mark.parametrize("size", [2, 3, 64, 128])
def test_batches_are_alike_and_none_has_a_single_example(count: int, size: int) -> None:
    slices = EvenSlices(count, size)
    rows = [list(range(count))[slices[index]] for index in range(len(slices))]
    assert list(itertools.chain(*rows)) == list(range(count)), "each example once, in order"
    sizes = [len(batch) for batch in rows]
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 2
    assert max(sizes) <= size or (size, count % 2) == (2, 1), "three where one would be left of batches of two"
    assert (len(slices) - 1) * size < count, "no more batches than needed"


@pytest.mark.parametrize(("warm_up", "initial"), [(4, 0.0), (10, 1e-7 / 5e-4), (1, 0.0)])
def test_inverse_sqrt_is_fairseqs(warm_up: int, initial: float) -> None:
    """lr_step and decay_factor as its scheduler has them, set after each update for the next."""
    lr, stepped = initial, []
    for updates in range(1, 60):
        stepped.append(lr)
        lr = initial + updates * (1 - initial) / warm_up if updates < warm_up else warm_up**0.5 * updates**-0.5
    rate = partial(rates.inverse_sqrt, warm_up=warm_up, initial=initial)
    assert [rate(t) for t in range(59)] == pytest.approx(stepped)
    assert max(map(rate, range(1000))) == rate(warm_up) == 1.0


def test_only_ones_own_batches_are_made_and_each_is_moved() -> None:
    both = [BatchPlan(Named(6), 1, rank, 2).at(4).batches for rank in (0, 1)]
    assert sorted(both[0] + both[1]) == sorted(BatchPlan(Named(6), 2).at(4).batches)
    batches = Named(6)
    step = BatchPlan(batches, 2, 1, 2).at(0, move=lambda batch: ("moved", batch))
    assert batches.made == [(0, 1), (0, 3)]
    assert step.batches == [("moved", (0, 1)), ("moved", (0, 3))]


def test_a_batch_that_is_not_there_is_named() -> None:
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"there is no batch {index}; an epoch has 3"):
            _ = EvenSlices(9, 3)[index]


def test_cosine_and_line_grow_fall_and_end_at_zero() -> None:
    rate = partial(rates.cosine, total=100, warm_up=3)
    assert [rate(t) for t in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert all(rate(t) > rate(t + 1) for t in range(3, 100))
    assert rates.cosine(0, 100) == 1.0 and rates.cosine(50, 100) == pytest.approx(0.5)
    assert rate(99) > 0 and rate(100) == rate(10_000) == pytest.approx(0.0)
    assert rates.cosine(4, 3, warm_up=5) == pytest.approx(5 / 6)  # a run that ends before it is warm
    rate = partial(rates.linear, total=10, warm_up=4, initial=0.2)
    falling = [k / 6 for k in (5, 4, 3, 2, 1, 0, 0)]
    assert [rate(t) for t in range(12)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, *falling])
    assert [rates.linear(t, 2) for t in range(3)] == [1, 0.5, 0]
    assert rates.linear(1, 2, 4) == 0.25  # a run that ends in its warm-up
    assert [rates.inverse_sqrt(t, 0) for t in (0, 1, 4, 100)] == [1.0, 1.0, 0.5, 0.1]
