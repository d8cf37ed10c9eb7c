"""Batches of images. Their order depends on (seed, epoch), the augmentation of an image on (seed, epoch, index)."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from partialsgd._util import randomness
from partialsgd.lab.recipes.images.data import Part, mean_and_deviation
from partialsgd.lab.training.batch_plan import EvenSlices, permutation

ImageBatch: TypeAlias = tuple[Tensor, Tensor]
"""Standardised float32 images (count, channels, height, width), and int64 labels."""


@final
class Standardise:
    """Turn images into floats that have mean 0 and deviation 1 per channel on the training images."""

    def __init__(self, images: Tensor) -> None:
        self.mean, deviation = mean_and_deviation(images)
        self.factor = 1 / deviation

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
