"""Batches of images: the order by (seed, epoch), each image's augmentation by (seed, epoch, index)."""

from __future__ import annotations

from typing import TypeAlias, final

from torch import Tensor

from partialsgd.lab.recipes.images.augmentation import Draws, augmented, draws, windows
from partialsgd.lab.recipes.images.data import Part, mean_and_deviation
from partialsgd.lab.training.orders import Cuts, permutation

ImageBatch: TypeAlias = tuple[Tensor, Tensor]
"""float32 (images, channels, height, width), standardised; int64 labels."""


@final
class Standard:
    """Images as numbers: each channel with the mean 0 and the deviation 1 that it has in training."""

    def __init__(self, images: Tensor) -> None:
        self.mean, deviation = mean_and_deviation(images)
        self.factor = 1 / deviation

    def __call__(self, images: Tensor) -> Tensor:
        return images.float().sub_(self.mean).mul_(self.factor)


@final
class ImageBatches:
    """What a training is fed with. The draws of an epoch are made once, for they cost more one batch at a time."""

    def __init__(self, train: Part, standard: Standard, *, size: int, seed: int, crop: int, flip: bool) -> None:
        self.labels, self.standard = train.labels, standard
        self.seed, self.crop, self.flip = seed, crop, flip
        self._windows, self._cuts = windows(train.images, crop), Cuts(len(train), size)
        self._drawn: tuple[int, Tensor, Draws] | None = None

    def __len__(self) -> int:
        return len(self._cuts)

    def units(self, epoch: int, index: int) -> int:
        return self._cuts.size(index)

    def make(self, epoch: int, index: int) -> ImageBatch:
        order, drawn = self._epoch(epoch)
        here = self._cuts[index]
        chosen = order[here]
        return self.standard(augmented(self._windows, chosen, drawn.of(here))), self.labels[chosen]

    def _epoch(self, epoch: int) -> tuple[Tensor, Draws]:
        """The order, and the draws in this order."""
        if self._drawn is None or self._drawn[0] != epoch:
            order = permutation(len(self.labels), self.seed, epoch, "order")
            each = draws(self.seed, epoch, len(order), self.crop, flip=self.flip)
            self._drawn = (epoch, order, each.of(order))
        return self._drawn[1:]
