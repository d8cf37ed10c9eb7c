"""The order of an epoch, and its batches."""

from __future__ import annotations

import itertools

import pytest
import torch

from partialsgd._util import randomness
from partialsgd.lab.training.orders import Cuts, permutation


def test_a_permutation_belongs_to_its_place_alone() -> None:
    torch.manual_seed(1)
    first = permutation(100, 3, 7, "order")
    torch.manual_seed(2)
    assert torch.equal(first, permutation(100, 3, 7, "order"))
    assert sorted(first.tolist()) == list(range(100))
    for other in ((4, 7, "order"), (3, 8, "order"), (3, 7, "validation")):
        assert not torch.equal(first, permutation(100, *other))
    generator = torch.Generator().manual_seed(randomness.key(3, 7, "order"))
    assert torch.equal(first, torch.randperm(100, generator=generator))


def test_drawing_an_order_does_not_move_the_global_generator() -> None:
    before = torch.get_rng_state()
    permutation(10, 0, "order")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 64, 65, 129, 1000])
@pytest.mark.parametrize("size", [2, 3, 64, 128])
def test_batches_are_alike_and_none_has_a_single_example(count: int, size: int) -> None:
    cuts = Cuts(count, size)
    rows = [list(range(count))[cuts[index]] for index in range(len(cuts))]
    assert list(itertools.chain(*rows)) == list(range(count)), "each example once, in order"
    sizes = [len(batch) for batch in rows]
    assert sizes == [cuts.size(index) for index in range(len(cuts))]
    assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 2
    assert max(sizes) <= size or (size, count % 2) == (2, 1), "three where one would be left of batches of two"
    assert (len(cuts) - 1) * size < count, "no more batches than needed"


def test_the_papers_epoch() -> None:
    cuts = Cuts(45_000, 128)
    assert len(cuts) == 352 and {cuts.size(index) for index in range(352)} == {127, 128}


@pytest.mark.parametrize("index", [-1, 3])
def test_a_batch_that_is_not_there_is_named(index: int) -> None:
    with pytest.raises(IndexError, match=f"there is no batch {index}; an epoch has 3"):
        _ = Cuts(9, 3)[index]
