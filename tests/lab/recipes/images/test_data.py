"""The splits, the numbers by which images are standardised, and scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from partialsgd._util import randomness
from partialsgd.lab.recipes.images.data import (
    ImageBatches,
    Part,
    Standardise,
    augment,
    draw,
    read_cifar,
    read_digits,
    split_off_validation,
    windows,
)
from partialsgd.lab.training.batch_plan import permutation
from tests.lab.recipes.images.made import NAMES, records, write


def numbered(count: int) -> Part:
    """Images whose label is their place."""
    return Part(torch.zeros(count, 1, 1, 1, dtype=torch.uint8), torch.arange(count))


@pytest.mark.parametrize(("count", "share", "held"), [(4, 0.1, 0), (4, 0.7, 3)])
def test_a_split_that_leaves_nothing_is_refused(count: int, share: float, held: int) -> None:
    with pytest.raises(ValueError, match=rf"valid_share {share} of {count} training images is {held}; at least one"):
        split_off_validation(numbered(count), share, 0)


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


def test_a_record_is_a_label_and_three_planes_of_rows(tmp_path: Path) -> None:
    write(tmp_path, {1: 10}, test=7)
    test, said = read_cifar(tmp_path, 0.2, 0).test, records(7, 100)
    assert test.images.shape == (7, 3, 32, 32) and test.images.dtype is torch.uint8
    assert torch.equal(test.labels, said[:, 0].long())
    for image, channel, row, column in ((0, 0, 0, 0), (3, 2, 31, 31), (6, 1, 2, 3), (5, 0, 30, 1)):
        assert test.images[image, channel, row, column] == said[image, 1 + 1024 * channel + 32 * row + column]


def test_any_number_of_training_batches_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write(tmp_path, {10: 8, 2: 5, 1: 3})
    data = read_cifar(tmp_path, 0.25, 0)
    assert (len(data.train), len(data.valid), len(data.test)) == (12, 4, 20)
    everything = torch.cat([records(3, 1), records(5, 2), records(8, 10)])[:, 1:].reshape(-1, 3, 32, 32)
    order = permutation(16, 0, "validation")
    assert torch.equal(torch.cat([data.train.images, data.valid.images]), everything[order])


def test_the_folder_around_it_is_as_good_and_names_come_from_the_file(tmp_path: Path) -> None:
    inside = write(tmp_path / "cifar-10-batches-bin", {1: 10})
    data = read_cifar(tmp_path, 0.2, 0)
    assert torch.equal(data.train.images, read_cifar(inside, 0.2, 0).train.images)
    assert list(data.names) == NAMES
    (inside / "batches.meta.txt").unlink()
    assert read_cifar(inside, 0.2, 0).names == tuple("0123456789")
    assert len(read_cifar(inside, 0.5, 0, limit=6).train) == 3


@pytest.mark.parametrize("name", ["data_batch_1.bin", "test_batch.bin"])
@pytest.mark.parametrize("content", [b"", b"\0" * 3072, b"\0" * (2 * 3073 + 1)])
def test_a_file_of_a_wrong_size_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    write(tmp_path, {1: 10, 2: 10})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} has {len(content):,} bytes, which is not a multiple of the 3,073"):
        read_cifar(tmp_path, 0.2, 0)


@pytest.mark.parametrize("name", ["data_batch_1.bin", "test_batch.bin"])
def test_a_label_out_of_range_is_named_with_its_image(tmp_path: Path, name: str) -> None:
    wrong = records(10, 1)
    wrong[6, 0] = 10
    write(tmp_path, {1: 10})
    (tmp_path / name).write_bytes(wrong.numpy().tobytes())
    with pytest.raises(ValueError, match=rf"{name}: image 7 has label 10, but CIFAR-10's labels are 0 to 9"):
        read_cifar(tmp_path, 0.2, 0)


@pytest.mark.parametrize("names", ["cat\ndog\n", "\n".join(["cat", "cat", *NAMES[2:]])])
def test_names_must_be_ten(tmp_path: Path, names: str) -> None:
    write(tmp_path, {1: 10})
    (tmp_path / "batches.meta.txt").write_text(names)
    with pytest.raises(ValueError, match=r"batches.meta.txt must name 10 classes, one a line; it names [28]"):
        read_cifar(tmp_path, 0.2, 0)


def test_validation_is_drawn_by_the_seed_from_all_images_or_from_a_limit() -> None:
    train, valid = split_off_validation(numbered(50_000), 0.1, seed=0)
    assert (len(train), len(valid)) == (45_000, 5_000), "the paper's"
    assert torch.cat([train.labels, valid.labels]).sort().values.equal(torch.arange(50_000))
    first, again, other = (split_off_validation(numbered(100), 0.3, seed)[1].labels for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first.sort().values, other.sort().values)
    assert not torch.equal(first.sort().values, torch.arange(70, 100)), "not simply the last ones"
    train, valid = split_off_validation(numbered(1000), 0.25, 0, limit=40)
    assert (len(train), len(valid)) == (30, 10) and int(train.labels.max()) > 500
    assert len(set(torch.cat([train.labels, valid.labels]).tolist())) == 40
    assert len(split_off_validation(numbered(10), 0.2, 0, limit=99)[0]) == 8


def test_images_are_standardised_by_all_pixels_of_a_channel_to_the_bit_in_any_order() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2100, 3, 4, 5), dtype=torch.uint8, generator=generator)  # more than are summed at once
    standard, again = Standardise(images), Standardise(images.flip(0))
    torch.testing.assert_close(standard.mean.flatten(), images.double().mean((0, 2, 3)).float())
    deviation = images.double().std((0, 2, 3), correction=0).float()
    torch.testing.assert_close(standard.factor.flatten(), 1 / deviation)
    assert torch.equal(standard.mean, again.mean) and torch.equal(standard.factor, again.factor)
    constant = Standardise(torch.full((3, 1, 2, 2), 7, dtype=torch.uint8))
    assert (float(constant.mean), float(constant.factor)) == (7.0, 1.0), "a constant channel is only shifted"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    def refused(folder: Path, message: str) -> None:
        with pytest.raises(FileNotFoundError, match=message):
            read_cifar(folder, 0.2, 0)

    refused(tmp_path / "nowhere", r"nowhere is not a folder; give the one with data_batch_1\.bin")
    refused(tmp_path, r"has no data_batch_\*.bin; give --data the folder with the binary")
    (tmp_path / "data_batch_1").write_bytes(b"pickled")
    refused(tmp_path, "CIFAR-10's Python version, which is pickled and therefore not read")
    write(tmp_path, {1: 10})
    (tmp_path / "test_batch.bin").unlink()
    refused(tmp_path, r"test_batch.bin is missing")


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
        """Read a pixel of the image with black around it."""
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
