"""Images with their classes in three splits, read from CIFAR-10 or scikit-learn, and augmented training batches.

The order of the batches depends on (seed, epoch), the augmentation of an image on (seed, epoch, index).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from partialsgd._util import randomness
from partialsgd.lab.training.batch_plan import EvenSlices, permutation

_DIGITS_TEST_SHARE = 0.2
_CLASSES, _RECORD = 10, 1 + 3 * 32 * 32
_SUBFOLDER, _TEST, _NAMES = "cifar-10-batches-bin", "test_batch.bin", "batches.meta.txt"

ImageBatch: TypeAlias = tuple[Tensor, Tensor]
"""Standardised float32 images (count, channels, height, width), and int64 labels."""


@final
@dataclass(frozen=True)
class Part:
    """Images as bytes, (count, channels, height, width), and the class of each one as a number."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: Tensor) -> Part:
        return Part(self.images[chosen], self.labels[chosen])


@final
@dataclass(frozen=True)
class Data:
    """The splits, and the names of the classes."""

    train: Part
    valid: Part
    test: Part
    names: tuple[str, ...]


def split_off_validation(part: Part, share: float, seed: int, limit: int | None = None) -> tuple[Part, Part]:
    """Split images into training and validation, after choosing `limit` of them; the seed decides."""
    order = permutation(len(part), seed, "validation")[:limit]
    held_out = round(share * len(order))
    if not 1 <= held_out <= len(order) - 2:
        raise ValueError(
            f"valid_share {share} of {len(order)} training images is {held_out}; at least one image must be left for "
            "validation and two for training"
        )
    return part[order[:-held_out]], part[order[-held_out:]]


def read_digits(valid_share: float, seed: int, limit: int | None = None) -> Data:
    """scikit-learn's 1,797 handwritten digits of 8 × 8 pixels. The test images do not depend on the seed."""
    from sklearn.datasets import load_digits  # not needed for CIFAR-10

    images, labels = load_digits(return_X_y=True)
    digits = Part(torch.tensor(images, dtype=torch.uint8).view(-1, 1, 8, 8), torch.tensor(labels, dtype=torch.long))
    order = permutation(len(digits), "test")
    tested = round(_DIGITS_TEST_SHARE * len(digits))
    train, valid = split_off_validation(digits[order[:-tested]], valid_share, seed, limit)
    return Data(train, valid, digits[order[-tested:]], tuple(map(str, range(10))))


def read_cifar(folder: str | os.PathLike[str], valid_share: float, seed: int, limit: int | None = None) -> Data:
    """Read all training batches in the folder (one is enough), the test batch, and the class names if present."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"--data {folder} is not a folder; give the one with data_batch_1.bin and {_TEST}")
    has_files = any(folder.glob("data_batch_*.bin")) or (folder / _TEST).exists()
    if not has_files and (folder / _SUBFOLDER).is_dir():
        folder /= _SUBFOLDER
    training = sorted(folder.glob("data_batch_*.bin"), key=lambda path: (len(path.name), path.name))
    if not training:
        hint = "give --data the folder with the binary version of CIFAR-10"
        if (folder / "data_batch_1").exists():
            hint = "it is CIFAR-10's Python version, which is pickled and therefore not read; get the binary version"
        raise FileNotFoundError(f"{folder} has no data_batch_*.bin; {hint}")
    if not (folder / _TEST).is_file():
        raise FileNotFoundError(f"{folder / _TEST} is missing; the accuracy is measured on it")
    parts = [read_cifar_batch(path) for path in training]
    images = Part(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
    train, valid = split_off_validation(images, valid_share, seed, limit)
    return Data(train, valid, read_cifar_batch(folder / _TEST), _names(folder / _NAMES))


def read_cifar_batch(path: Path) -> Part:
    """Read one file: for each image one byte of label and 3 × 32 × 32 bytes of pixels, red first."""
    content = path.read_bytes()
    if not content or len(content) % _RECORD:
        raise ValueError(
            f"{path} has {len(content):,} bytes, which is not a multiple of the {_RECORD:,} bytes of an image; it is "
            "incomplete, or not a binary file of CIFAR-10: download it again"
        )
    records: Tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, _RECORD)
    labels = records[:, 0].long()
    if bool((labels >= _CLASSES).any()):
        first = int((labels >= _CLASSES).nonzero()[0])
        raise ValueError(
            f"{path}: image {first + 1} has label {int(labels[first])}, but CIFAR-10's labels are 0 to {_CLASSES - 1}; "
            "the file is damaged, or belongs to another data set"
        )
    return Part(records[:, 1:].reshape(-1, 3, 32, 32), labels)


def _names(path: Path) -> tuple[str, ...]:
    """The names of the classes, or their numbers if there is no file."""
    if not path.is_file():
        return tuple(map(str, range(_CLASSES)))
    names = tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    if len(set(names)) != _CLASSES or len(names) != _CLASSES:
        raise ValueError(f"{path} must name {_CLASSES} classes, one a line; it names {len(set(names))}")
    return names


@final
class Standardise:
    """Turn images into floats that have mean 0 and deviation 1 per channel on the training images.

    Both come from sums of integers, which are exact for any number of threads.
    """

    def __init__(self, images: Tensor) -> None:
        count, parts = images[:, 0].numel(), torch.split(images, 1000)
        sums, squares = (torch.stack([(part.int() ** k).sum((0, 2, 3)) for part in parts]).sum(0) for k in (1, 2))
        mean = sums.double() / count
        deviation = (squares.double() / count - mean**2).clamp(min=0).sqrt()
        deviation[deviation == 0] = 1  # a constant channel
        self.mean, self.factor = mean.float().view(1, -1, 1, 1), 1 / deviation.float().view(1, -1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        return images.float().sub_(self.mean).mul_(self.factor)


@final
class ImageBatches:
    """The training batches. The random draws of an epoch are made at once, which is faster than for each batch."""

    def __init__(self, train: Part, standardise: Standardise, *, size: int, seed: int, crop: int, flip: bool) -> None:
        self.labels, self.standardise = train.labels, standardise
        self.seed, self.crop, self.flip = seed, crop, flip
        self._windows, self._slices = windows(train.images, crop), EvenSlices(len(train), size)
        self._drawn: tuple[int, Tensor, Draws] | None = None

    def __len__(self) -> int:
        return len(self._slices)

    def units(self, epoch: int, index: int) -> int:
        part = self._slices[index]
        return int(part.stop - part.start)

    def make(self, epoch: int, index: int) -> ImageBatch:
        order, draws = self._draws_of(epoch)
        part = self._slices[index]
        chosen = order[part]
        return self.standardise(augment(self._windows, chosen, draws.at(part))), self.labels[chosen]

    def _draws_of(self, epoch: int) -> tuple[Tensor, Draws]:
        """The order of the images, and the draws in this order."""
        if self._drawn is None or self._drawn[0] != epoch:
            order = permutation(len(self.labels), self.seed, epoch, "order")
            draws = draw(self.seed, epoch, len(order), self.crop, flip=self.flip)
            self._drawn = (epoch, order, draws.at(order))
        return self._drawn[1:]


class Draws(NamedTuple):
    """The augmentation of each image."""

    top: Tensor
    """Rows of the padded image above the crop."""
    left: Tensor
    """Columns to its left."""
    mirrored: Tensor

    def at(self, chosen: Tensor | slice) -> Draws:
        return Draws(*(tensor[chosen] for tensor in self))


def draw(seed: int, epoch: int, count: int, padding: int, *, flip: bool) -> Draws:
    """Draw 64 random bits for each image of an epoch, and take the crop and the flip from them."""
    key = randomness.key(seed, epoch, "augmentation")
    chunks = [words.clone() for _, words in randomness.words(key, count, torch.device("cpu"))]
    words = torch.cat(chunks) if chunks else torch.empty(0, dtype=torch.long)
    top, left = ((words >> shift & 0xFFFF) * (2 * padding + 1) >> 16 for shift in (0, 16))
    mirrored = (words >> 32 & 1).bool() if flip else torch.zeros(count, dtype=torch.bool)
    return Draws(top, left, mirrored)


def windows(images: Tensor, padding: int) -> Tensor:
    """All crops of the padded images, (count, channels, top, left, height, width), as a view."""
    height, width = images.shape[-2:]
    return pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)


def augment(windows: Tensor, chosen: Tensor, draws: Draws) -> Tensor:
    """The chosen images, cropped and mirrored as drawn."""
    images = windows[chosen, :, draws.top, draws.left]
    if not bool(draws.mirrored.any()):
        return images
    return torch.where(draws.mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
