"""How one dimension of a weight is divided among the levels, and joined again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor


@final
@dataclass(frozen=True)
class Axis:
    """A level has the first units of each of `groups` groups; all levels have the `tail` units after the groups."""

    full: int
    """The number of units of a group in the full network."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The number of units of a group at each level that has fewer."""
    groups: int = 1
    tail: int = 0
    order: Tensor | None = None
    """A permutation of the units of the original layer, over all groups."""

    def units(self, level: str) -> int:
        return self.sizes.get(level, self.full)

    def length(self, level: str) -> int:
        """Return the length of the dimension at a level."""
        return self.groups * self.units(level) + self.tail

    def permuted(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor if self.order is None else tensor.index_select(dim, self.order.to(tensor.device))

    def between(self, tensor: Tensor, dim: int, low: int, high: int) -> Tensor:
        """Return the units low to high of every group; the tail is with those that begin at 0."""
        if self.groups == 1 and self.tail == 0:
            return tensor.narrow(dim, low, high - low)
        body = _grouped(tensor.narrow(dim, 0, self.groups * self.full), dim, self.groups)
        body = body.narrow(dim + 1, low, high - low).flatten(dim, dim + 1)
        if low > 0 or self.tail == 0:
            return body
        return torch.cat([body, tensor.narrow(dim, self.groups * self.full, self.tail)], dim)

    def join(self, blocks: Sequence[Tensor], dim: int) -> Tensor:
        """Join the results of `between`, in order, to one tensor."""
        if len(blocks) == 1:
            return blocks[0]
        if self.groups == 1 and self.tail == 0:
            return torch.cat(list(blocks), dim)
        first, tail = torch.split(blocks[0], [blocks[0].shape[dim] - self.tail, self.tail], dim)
        grouped = [_grouped(block, dim, self.groups) for block in (first, *blocks[1:])]
        joined = torch.cat(grouped, dim + 1).flatten(dim, dim + 1)
        return torch.cat([joined, tail], dim) if self.tail else joined

    def pad(self, y: Tensor, level: str) -> Tensor:
        """Put zeros into the outputs of a level in the places of the units that it lacks."""
        units = self.units(level)
        if units == self.full:
            return y
        body, tail = torch.split(y, [self.groups * units, self.tail], -1)
        padded = F.pad(_grouped(body, -1, self.groups), (0, self.full - units)).flatten(-2)
        return torch.cat([padded, tail], -1) if self.tail else padded


def _grouped(tensor: Tensor, dim: int, groups: int) -> Tensor:
    return torch.unflatten(tensor, dim, (groups, tensor.shape[dim] // groups))
