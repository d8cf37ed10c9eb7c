"""CIFAR-10's binary files, and what can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from partialsgd.lab.recipes.images.data import read_cifar
from partialsgd.lab.training.batch_plan import permutation
from tests.lab.recipes.images.made import NAMES, records, write


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


def test_a_limit_is_passed_on(tmp_path: Path) -> None:
    data = read_cifar(write(tmp_path, {1: 20}), 0.5, 0, limit=10)
    assert (len(data.train), len(data.valid), len(data.test)) == (5, 5, 20)


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


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere is not a folder; give the one with data_batch_1\.bin"):
        read_cifar(tmp_path / "nowhere", 0.2, 0)
    with pytest.raises(FileNotFoundError, match=r"has no data_batch_\*.bin; give --data the folder with the binary"):
        read_cifar(tmp_path, 0.2, 0)
    write(tmp_path, {1: 10})
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"test_batch.bin is missing"):
        read_cifar(tmp_path, 0.2, 0)


def test_the_python_version_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(b"pickled")
    with pytest.raises(FileNotFoundError, match="CIFAR-10's Python version, which is pickled and therefore not read"):
        read_cifar(tmp_path, 0.2, 0)


@pytest.mark.parametrize("names", ["cat\ndog\n", "\n".join(["cat", "cat", *NAMES[2:]])])
def test_names_must_be_ten(tmp_path: Path, names: str) -> None:
    write(tmp_path, {1: 10})
    (tmp_path / "batches.meta.txt").write_text(names)
    with pytest.raises(ValueError, match=r"batches.meta.txt must name 10 classes, one a line; it names [28]"):
        read_cifar(tmp_path, 0.2, 0)
