"""What an augmented image is, one pixel at a time: the definition that the fast one is compared with."""

from __future__ import annotations

from torch import Tensor

from partialsgd._util import randomness

_MASK = 2**64 - 1


def word(seed: int, epoch: int, index: int) -> int:
    """SplitMix64, as its authors write it, at the place of the image."""
    z = (randomness.key(seed, epoch, "augmentation") + index * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def draws(seed: int, epoch: int, index: int, padding: int, flip: bool) -> tuple[int, int, bool]:
    """Down, right, mirrored: the three lowest pieces of 16 bits."""
    pieces = [word(seed, epoch, index) // 2**shift % 2**16 for shift in (0, 16, 32)]
    down, right = (piece * (2 * padding + 1) // 2**16 for piece in pieces[:2])
    return down, right, flip and pieces[2] % 2 == 1


def augmented(image: Tensor, padding: int, down: int, right: int, mirrored: bool) -> list[list[list[int]]]:
    channels, height, width = image.shape

    def pixel(channel: int, y: int, x: int) -> int:
        """Of the image with black around it."""
        y, x = y - padding, x - padding
        return int(image[channel, y, x]) if 0 <= y < height and 0 <= x < width else 0

    columns = range(width - 1, -1, -1) if mirrored else range(width)
    return [[[pixel(c, down + y, right + x) for x in columns] for y in range(height)] for c in range(channels)]
