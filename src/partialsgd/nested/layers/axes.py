"""How a dimension of a weight is cut into the shares of the levels, and joined again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor


@final
@dataclass(frozen=True)
class Axis:
    """In each of `groups` groups a level has the first units; `tail` units after the groups belong to all levels."""

    full: int
    """Units of a group in the whole network."""
    sizes: Mapping[str, int]
    """Units of a group at each level that has fewer."""
    groups: int = 1
    tail: int = 0
    order: Tensor | None = None
    """Which unit of the original layer comes where, over all groups."""

    def units(self, level: str) -> int:
        return self.sizes.get(level, self.full)

    def length(self, units: int) -> int:
        """The length of a dimension that has so many units a group."""
        return self.groups * units + self.tail

    def ordered(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor if self.order is None else tensor.index_select(dim, self.order.to(tensor.device))

    def between(self, tensor: Tensor, dim: int, low: int, high: int) -> Tensor:
        """The units low to high of every group; the tail goes with the first."""
        if self.groups == 1 and self.tail == 0:
            return tensor.narrow(dim, low, high - low)
        body = _grouped(tensor.narrow(dim, 0, self.groups * self.full), dim, self.groups)
        body = body.narrow(dim + 1, low, high - low).flatten(dim, dim + 1)
        if low > 0 or self.tail == 0:
            return body
        return torch.cat([body, tensor.narrow(dim, self.groups * self.full, self.tail)], dim)

    def join(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """The parts, in order, as one tensor again."""
        if len(parts) == 1:
            return parts[0]
        if self.groups == 1 and self.tail == 0:
            return torch.cat(list(parts), dim)
        body = parts[0].shape[dim] - self.tail
        first, tail = torch.split(parts[0], [body, self.tail], dim)
        grouped = [_grouped(part, dim, self.groups) for part in (first, *parts[1:])]
        joined = torch.cat(grouped, dim + 1).flatten(dim, dim + 1)
        return torch.cat([joined, tail], dim) if self.tail else joined

    def pad(self, y: Tensor, units: int) -> Tensor:
        """The outputs of so many units a group, with zeros for the others in their places."""
        if units == self.full:
            return y
        body, tail = torch.split(y, [self.groups * units, self.tail], -1)
        padded = F.pad(_grouped(body, -1, self.groups), (0, self.full - units)).flatten(-2)
        return torch.cat([padded, tail], -1) if self.tail else padded


def whole(length: int) -> Axis:
    """A dimension that all levels have whole."""
    return Axis(length, {})


def _grouped(tensor: Tensor, dim: int, groups: int) -> Tensor:
    return torch.unflatten(tensor, dim, (groups, tensor.shape[dim] // groups))
