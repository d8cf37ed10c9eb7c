"""The splits, the numbers by which images are standardised, and scikit-learn's digits."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from partialsgd.lab.recipes.images.data import Part, mean_and_deviation, read_digits, split_off_validation


def numbered(count: int) -> Part:
    """Images whose label is their place."""
    return Part(torch.zeros(count, 1, 1, 1, dtype=torch.uint8), torch.arange(count))


def test_the_papers_split_has_45_000_and_5_000_images() -> None:
    train, valid = split_off_validation(numbered(50_000), 0.1, seed=0)
    assert (len(train), len(valid)) == (45_000, 5_000)
    assert torch.cat([train.labels, valid.labels]).sort().values.equal(torch.arange(50_000))


def test_validation_is_drawn_by_the_seed_alone() -> None:
    first, again, other = (split_off_validation(numbered(100), 0.3, seed)[1].labels for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first.sort().values, other.sort().values)
    assert not torch.equal(first.sort().values, torch.arange(70, 100)), "not simply the last ones"


def test_a_limit_takes_some_of_all_and_validation_from_these() -> None:
    train, valid = split_off_validation(numbered(1000), 0.25, 0, limit=40)
    assert (len(train), len(valid)) == (30, 10)
    assert len(set(torch.cat([train.labels, valid.labels]).tolist())) == 40
    assert int(train.labels.max()) > 500
    assert len(split_off_validation(numbered(10), 0.2, 0, limit=99)[0]) == 8


@pytest.mark.parametrize(("count", "share", "held"), [(4, 0.1, 0), (4, 0.7, 3)])
def test_a_split_that_leaves_nothing_is_refused(count: int, share: float, held: int) -> None:
    with pytest.raises(ValueError, match=rf"valid_share {share} of {count} training images is {held}; at least one"):
        split_off_validation(numbered(count), share, 0)


def bytes_of(shape: tuple[int, ...]) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_mean_and_deviation_are_those_of_all_pixels_of_a_channel() -> None:
    images = bytes_of((2100, 3, 4, 5))  # more than are summed at once
    mean, deviation = mean_and_deviation(images)
    assert mean.shape == deviation.shape == (1, 3, 1, 1)
    torch.testing.assert_close(mean.flatten(), images.double().mean((0, 2, 3)).float())
    torch.testing.assert_close(deviation.flatten(), images.double().std((0, 2, 3), correction=0).float())


def test_they_are_the_same_to_the_bit_in_any_order() -> None:
    images = bytes_of((2100, 3, 4, 5))
    for a, b in zip(mean_and_deviation(images), mean_and_deviation(images.flip(0)), strict=True):
        assert torch.equal(a, b)


def test_a_channel_that_is_everywhere_the_same_is_only_shifted() -> None:
    mean, deviation = mean_and_deviation(torch.full((3, 1, 2, 2), 7, dtype=torch.uint8))
    assert (float(mean), float(deviation)) == (7.0, 1.0)


def test_all_images_are_there_once_as_they_come() -> None:
    data = read_digits(0.2, 0)
    assert [len(part) for part in (data.train, data.valid, data.test)] == [1150, 288, 359]
    assert data.names == tuple("0123456789") and data.train.images.shape[1:] == (1, 8, 8)
    images, labels = load_digits(return_X_y=True)
    ours = torch.cat([part.images for part in (data.train, data.valid, data.test)]).flatten(1)
    classes = torch.cat([part.labels for part in (data.train, data.valid, data.test)])
    assert ours.dtype is torch.uint8 and int(ours.max()) == 16
    found = sorted((*pixels, label) for pixels, label in zip(ours.tolist(), classes.tolist(), strict=True))
    assert found == sorted((*pixels, label) for pixels, label in zip(images.astype(int).tolist(), labels, strict=True))


def test_the_test_images_are_the_same_for_every_seed_and_validation_is_not() -> None:
    first, other = read_digits(0.2, 0), read_digits(0.2, 1)
    assert torch.equal(first.test.images, other.test.images)
    assert not torch.equal(first.valid.images, other.valid.images)
    assert len(read_digits(0.2, 0, limit=50).train) == 40
