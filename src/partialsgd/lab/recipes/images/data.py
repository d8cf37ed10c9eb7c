"""Pictures with their classes: to train with, to validate and to test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from partialsgd.lab.training.orders import permutation


@final
@dataclass(frozen=True)
class Part:
    """Images as bytes, (count, channels, height, width), and the number of each one's class."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: Tensor) -> Part:
        return Part(self.images[chosen], self.labels[chosen])


@final
@dataclass(frozen=True)
class Data:
    train: Part
    valid: Part
    test: Part
    names: tuple[str, ...]
    """Of the classes."""


def apart(known: Part, share: float, seed: int, limit: int | None = None) -> tuple[Part, Part]:
    """To train with, and to validate: the last `share` of the images in an order that the seed draws."""
    order = permutation(len(known), seed, "validation")[:limit]
    held = round(share * len(order))
    if not 1 <= held <= len(order) - 2:
        raise ValueError(
            f"of {len(order)} training images valid_share {share} takes {held}; at least one must be for validation, "
            "and two must be left to train with"
        )
    return known[order[:-held]], known[order[-held:]]


def mean_and_deviation(images: Tensor) -> tuple[Tensor, Tensor]:
    """Of each channel. Sums of whole numbers: they are exact, in any order and with any number of threads."""
    count = images[:, 0].numel()
    parts = torch.split(images, 1000)
    sums, squares = (torch.stack([(part.int() ** k).sum((0, 2, 3)) for part in parts]).sum(0) for k in (1, 2))
    mean = sums.double() / count
    deviation = (squares.double() / count - mean**2).clamp(min=0).sqrt()
    deviation[deviation == 0] = 1  # a channel that is everywhere the same
    return mean.float().view(1, -1, 1, 1), deviation.float().view(1, -1, 1, 1)
