"""The splits, the numbers by which images are standardised, and scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from partialsgd.lab.recipes.images.data import Part, Standardise, read_cifar, read_digits, split_off_validation
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
