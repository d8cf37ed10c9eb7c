"""(seed, epoch, index of the image) ↦ where it is cut out, and whether it is mirrored."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from partialsgd._util import randomness


class Draws(NamedTuple):
    """For each image, in order."""

    down: Tensor
    """Rows of the padded image above the cut."""
    right: Tensor
    """Columns to the left of it."""
    mirrored: Tensor

    def of(self, chosen: Tensor | slice) -> Draws:
        return Draws(*(drawn[chosen] for drawn in self))


def draws(seed: int, epoch: int, count: int, padding: int, *, flip: bool) -> Draws:
    """Each image has a word of 64 bits of its own in each epoch; the draws are pieces of it."""
    key = randomness.key(seed, epoch, "augmentation")
    chunks = [words.clone() for _, words in randomness.words(key, count, torch.device("cpu"))]
    words = torch.cat(chunks) if chunks else torch.empty(0, dtype=torch.long)
    down, right = ((words >> shift & 0xFFFF) * (2 * padding + 1) >> 16 for shift in (0, 16))
    mirrored = (words >> 32 & 1).bool() if flip else torch.zeros(count, dtype=torch.bool)
    return Draws(down, right, mirrored)


def windows(images: Tensor, padding: int) -> Tensor:
    """All cuts of the images with black around them, (count, channels, down, right, height, width): a view."""
    height, width = images.shape[-2:]
    return pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)


def augmented(windows: Tensor, chosen: Tensor, drawn: Draws) -> Tensor:
    """The chosen images as they were drawn."""
    images = windows[chosen, :, drawn.down, drawn.right]
    if not bool(drawn.mirrored.any()):
        return images
    return torch.where(drawn.mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
