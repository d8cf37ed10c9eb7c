"""Batches of images, and crops and mirror images against their definition."""

from __future__ import annotations

import pytest
import torch

from partialsgd._util import randomness
from partialsgd.lab.recipes.images.data import ImageBatches, Part, Standardise, augment, draw, windows
from partialsgd.lab.training.batch_plan import permutation

# The definition, slow: one image and one pixel at a time.
_MASK = 2**64 - 1


def word(seed: int, epoch: int, index: int) -> int:
    """SplitMix64, as its authors write it, at the place of the image."""
    z = (randomness.key(seed, epoch, "augmentation") + index * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def slow_draws(seed: int, epoch: int, index: int, padding: int, flip: bool) -> tuple[int, int, bool]:
    """Down, right, mirrored: the three lowest pieces of 16 bits."""
    pieces = [word(seed, epoch, index) // 2**shift % 2**16 for shift in (0, 16, 32)]
    down, right = (piece * (2 * padding + 1) // 2**16 for piece in pieces[:2])
    return down, right, flip and pieces[2] % 2 == 1


def slow_augmented(image: torch.Tensor, padding: int, down: int, right: int, mirrored: bool) -> list[list[list[int]]]:
    channels, height, width = image.shape

    def pixel(channel: int, y: int, x: int) -> int:
        """Of the image with black around it."""
        y, x = y - padding, x - padding
        return int(image[channel, y, x]) if 0 <= y < height and 0 <= x < width else 0

    columns = range(width - 1, -1, -1) if mirrored else range(width)
    return [[[pixel(c, down + y, right + x) for x in columns] for y in range(height)] for c in range(channels)]


def part(count: int) -> Part:
    """Images whose label is their place."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 2, 6, 5), dtype=torch.uint8, generator=generator)
    return Part(images, torch.arange(count))


def batches(count: int = 23, size: int = 4, seed: int = 1, crop: int = 2, flip: bool = True) -> ImageBatches:
    train = part(count)
    return ImageBatches(train, Standardise(train.images), size=size, seed=seed, crop=crop, flip=flip)


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (1, 0), (1, 5)])
def test_an_epoch_has_each_image_once_in_the_order_of_seed_and_epoch(seed: int, epoch: int) -> None:
    found = batches(seed=seed)
    labels = [found.make(epoch, index)[1] for index in range(len(found))]
    assert torch.equal(torch.cat(labels), permutation(23, seed, epoch, "order"))
    assert (
        [len(each) for each in labels]
        == [found.units(epoch, index) for index in range(len(found))]
        == [3, 4, 4, 4, 4, 4]
    )


def test_each_image_is_cut_mirrored_and_standardised_by_its_own_index() -> None:
    train, found = part(23), batches()
    mean, deviation = found.standardise.mean, 1 / found.standardise.factor
    for epoch, index in ((0, 0), (4, 5)):
        images, labels = found.make(epoch, index)
        assert images.dtype is torch.float32 and labels.dtype is torch.int64
        for image, label in zip(images, labels.tolist(), strict=True):
            drawn = slow_draws(1, epoch, label, 2, True)
            expected = torch.tensor(slow_augmented(train.images[label], 2, *drawn)).float()
            torch.testing.assert_close(image, ((expected - mean) / deviation)[0])


def test_a_batch_is_a_function_of_epoch_and_index_whatever_was_made_before() -> None:
    fresh, used = batches(), batches()
    for epoch, index in ((3, 1), (0, 0), (3, 2)):
        used.make(epoch, index)
    for epoch, index in ((0, 2), (3, 1), (1, 5)):
        for a, b in zip(batches().make(epoch, index), used.make(epoch, index), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(fresh.make(0, 0)[0], fresh.make(1, 0)[0])


@pytest.mark.parametrize(("seed", "epoch", "padding", "flip"), [(0, 0, 4, True), (5, 3, 1, False), (2, 9, 0, True)])
def test_the_draws_are_those_of_the_definition(seed: int, epoch: int, padding: int, flip: bool) -> None:
    found = draw(seed, epoch, 200, padding, flip=flip)
    for index in range(200):
        expected = slow_draws(seed, epoch, index, padding, flip)
        assert tuple(int(drawn[index]) for drawn in found) == expected


def test_the_draw_of_an_image_depends_on_seed_epoch_and_index_alone() -> None:
    many, few = draw(1, 2, 70_000, 4, flip=True), draw(1, 2, 10, 4, flip=True)
    for a, b in zip(many, few, strict=True):
        assert torch.equal(a[:10], b)
    for index in (65_535, 65_536, 69_999):  # words are made in chunks
        assert tuple(int(drawn[index]) for drawn in many) == slow_draws(1, 2, index, 4, True)
    for other in (draw(2, 2, 1000, 4, flip=True), draw(1, 3, 1000, 4, flip=True)):
        assert all(float((a[:1000] == b).float().mean()) < 0.7 for a, b in zip(many, other, strict=True))


def test_every_place_is_as_likely_and_every_second_image_is_mirrored() -> None:
    drawn = draw(0, 0, 45_000, 4, flip=True)
    places = torch.bincount(9 * drawn.top + drawn.left, minlength=81).float() / 45_000
    assert len(places) == 81 and float((places * 81 - 1).abs().max()) < 0.2  # five deviations are 0.21
    assert abs(float(drawn.mirrored.float().mean()) - 0.5) < 0.012
    assert not draw(0, 0, 100, 4, flip=False).mirrored.any()


def test_making_batches_leaves_the_data_and_the_global_generator_alone() -> None:
    train, before = part(200), torch.get_rng_state()
    standardise = Standardise(train.images)
    found = ImageBatches(train, standardise, size=4, seed=0, crop=1, flip=True)
    images, labels = found.make(0, 0)
    images.zero_(), labels.zero_()
    assert torch.equal(train.images, part(200).images) and torch.equal(train.labels, torch.arange(200))
    assert torch.equal(before, torch.get_rng_state())
    standard = standardise(train.images)
    torch.testing.assert_close(standard.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(standard.std((0, 2, 3), correction=0), torch.ones(2), atol=1e-5, rtol=0)


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("flip", [True, False])
def test_images_are_those_of_the_definition_and_all_crops_are_one_view(padding: int, flip: bool) -> None:
    images = part(12).images
    chosen, drawn = torch.tensor([7, 0, 3, 3, 11]), draw(3, 1, 12, padding, flip=flip)
    crops = windows(images, padding)
    found = augment(crops, chosen, drawn.at(chosen))
    expected = [slow_augmented(images[i], padding, *slow_draws(3, 1, i, padding, flip)) for i in chosen.tolist()]
    assert found.dtype is torch.uint8 and found.tolist() == expected
    assert crops.untyped_storage().nbytes() == 12 * 2 * (6 + 2 * padding) * (5 + 2 * padding)
