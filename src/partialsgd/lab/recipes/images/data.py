"""Images with their classes, in three splits, and scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from partialsgd.lab.training.batch_plan import permutation

DIGITS_TEST_SHARE = 0.2


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


def mean_and_deviation(images: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and deviation of each channel, from sums of integers, which are exact for any number of threads."""
    count = images[:, 0].numel()
    parts = torch.split(images, 1000)
    sums, squares = (torch.stack([(part.int() ** k).sum((0, 2, 3)) for part in parts]).sum(0) for k in (1, 2))
    mean = sums.double() / count
    deviation = (squares.double() / count - mean**2).clamp(min=0).sqrt()
    deviation[deviation == 0] = 1  # a constant channel
    return mean.float().view(1, -1, 1, 1), deviation.float().view(1, -1, 1, 1)


def read_digits(valid_share: float, seed: int, limit: int | None = None) -> Data:
    """scikit-learn's 1,797 handwritten digits of 8 × 8 pixels. The test images do not depend on the seed."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn: pip install partialsgd[lab]") from error
    images, labels = load_digits(return_X_y=True)
    digits = Part(torch.tensor(images, dtype=torch.uint8).view(-1, 1, 8, 8), torch.tensor(labels, dtype=torch.long))
    order = permutation(len(digits), "test")
    tested = round(DIGITS_TEST_SHARE * len(digits))
    train, valid = split_off_validation(digits[order[:-tested]], valid_share, seed, limit)
    return Data(train, valid, digits[order[-tested:]], tuple(map(str, range(10))))
