"""What a training is fed with."""

from __future__ import annotations

import pytest
import torch

from partialsgd.lab.recipes.images.batches import ImageBatches, Standard
from partialsgd.lab.recipes.images.data import Part
from partialsgd.lab.training.orders import permutation
from tests.lab.recipes.images import slow


def part(count: int) -> Part:
    """Images whose label is their place."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 2, 6, 5), dtype=torch.uint8, generator=generator)
    return Part(images, torch.arange(count))


def batches(count: int = 23, size: int = 4, seed: int = 1, crop: int = 2, flip: bool = True) -> ImageBatches:
    train = part(count)
    return ImageBatches(train, Standard(train.images), size=size, seed=seed, crop=crop, flip=flip)


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


def test_the_last_batch_is_kept_and_never_a_single_image() -> None:
    found = batches(count=65, size=64)
    assert [len(found.make(0, index)[1]) for index in range(len(found))] == [32, 33]


def test_each_image_is_cut_mirrored_and_standardised_by_its_own_index() -> None:
    train, found = part(23), batches()
    mean, deviation = found.standard.mean, 1 / found.standard.factor
    for epoch, index in ((0, 0), (4, 5)):
        images, labels = found.make(epoch, index)
        assert images.dtype is torch.float32 and labels.dtype is torch.int64
        for image, label in zip(images, labels.tolist(), strict=True):
            drawn = slow.draws(1, epoch, label, 2, True)
            expected = torch.tensor(slow.augmented(train.images[label], 2, *drawn)).float()
            torch.testing.assert_close(image, ((expected - mean) / deviation)[0])


def test_a_batch_is_a_function_of_epoch_and_index_whatever_was_made_before() -> None:
    fresh, used = batches(), batches()
    for epoch, index in ((3, 1), (0, 0), (3, 2)):
        used.make(epoch, index)
    for epoch, index in ((0, 2), (3, 1), (1, 5)):
        for a, b in zip(batches().make(epoch, index), used.make(epoch, index), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(fresh.make(0, 0)[0], fresh.make(1, 0)[0])


def test_making_batches_leaves_the_data_and_the_global_generator_alone() -> None:
    train, before = part(23), torch.get_rng_state()
    found = ImageBatches(train, Standard(train.images), size=4, seed=0, crop=1, flip=True)
    images, labels = found.make(0, 0)
    images.zero_(), labels.zero_()
    assert torch.equal(train.images, part(23).images) and torch.equal(train.labels, torch.arange(23))
    assert torch.equal(before, torch.get_rng_state())


def test_standardised_training_images_have_mean_0_and_deviation_1() -> None:
    images = part(200).images
    found = Standard(images)(images)
    torch.testing.assert_close(found.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std((0, 2, 3), correction=0), torch.ones(2), atol=1e-5, rtol=0)
