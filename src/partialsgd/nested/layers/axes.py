"""How one dimension of a weight is divided among the levels, and joined again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias, final

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

    @property
    def is_prefix(self) -> bool:
        """True if a level has the first entries of the dimension."""
        return self.groups == 1 and self.tail == 0

    def units(self, level: str) -> int:
        return self.sizes.get(level, self.full)

    def length(self, level: str) -> int:
        """Return the length of the dimension at a level."""
        return self.groups * self.units(level) + self.tail

    def permuted(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor if self.order is None else tensor.index_select(dim, self.order.to(tensor.device))

    def between(self, tensor: Tensor, dim: int, low: int, high: int) -> Tensor:
        """Return the units low to high of every group; the tail is with those that begin at 0."""
        if self.is_prefix:
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
        if self.is_prefix:
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


@final
@dataclass(frozen=True)
class ChainedAxis:
    """Several axes behind each other, as the inputs of a layer that takes a concatenation.

    Its units are entries of the dimension: a level has some of each part, and as many units as these are together.
    """

    parts: tuple[Axis, ...]

    groups = 1
    tail = 0
    is_prefix = False

    @property
    def full(self) -> int:
        return self.units("")

    @property
    def sizes(self) -> dict[str, int]:
        return {level: self.units(level) for part in self.parts for level in part.sizes}

    @property
    def order(self) -> Tensor | None:
        if all(part.order is None for part in self.parts):
            return None
        orders, start = [], 0
        for part in self.parts:
            orders.append(start + (torch.arange(part.length("")) if part.order is None else part.order.cpu()))
            start += part.length("")
        return torch.cat(orders)

    def units(self, level: str) -> int:
        return sum(part.length(level) for part in self.parts)

    length = units

    def permuted(self, tensor: Tensor, dim: int) -> Tensor:
        order = self.order
        return tensor if order is None else tensor.index_select(dim, order.to(tensor.device))

    def between(self, tensor: Tensor, dim: int, low: int, high: int) -> Tensor:
        """Return what the level of `high` units has and the level of `low` units has not, part by part."""
        whole = torch.split(tensor, [part.length("") for part in self.parts], dim)
        ends = zip(self.parts, whole, self._units_of_parts(low), self._units_of_parts(high), strict=True)
        return torch.cat([part.between(piece, dim, start, end) for part, piece, start, end in ends], dim)

    def join(self, blocks: Sequence[Tensor], dim: int) -> Tensor:
        """Join the results of `between`, in order, to one tensor."""
        if len(blocks) == 1:
            return blocks[0]
        pieces: list[list[Tensor]] = [[] for _ in self.parts]
        low = 0
        for block in blocks:
            high = low + block.shape[dim]
            lengths = [
                part.groups * (end - start) + (part.tail if low == 0 else 0)
                for part, start, end in zip(
                    self.parts, self._units_of_parts(low), self._units_of_parts(high), strict=True
                )
            ]
            for own, piece in zip(pieces, torch.split(block, lengths, dim), strict=True):
                own.append(piece)
            low = high
        return torch.cat([part.join(own, dim) for part, own in zip(self.parts, pieces, strict=True)], dim)

    def pad(self, y: Tensor, level: str) -> Tensor:
        raise NotImplementedError("query and key lie in one piece")

    def _units_of_parts(self, total: int) -> list[int]:
        """Return how many units of each part the level has that has so many units in all."""
        if total == 0:
            return [0] * len(self.parts)
        level = next(level for level in ("", *self.sizes) if self.units(level) == total)
        return [part.units(level) for part in self.parts]


AnyAxis: TypeAlias = Axis | ChainedAxis


class AxisPart(NamedTuple):
    """An axis that begins at some entry of a dimension."""

    start: int
    axis: Axis


def axis_of(parts: Sequence[AxisPart], length: int) -> AnyAxis:
    """Return the axis of a dimension of that length; what lies between the parts is the same at all levels."""
    chain: list[Axis] = []
    end = 0
    for start, axis in sorted(parts, key=lambda part: part.start):
        if start > end:
            chain.append(Axis(start - end))
        chain.append(axis)
        end = start + axis.length("")
    if not chain:
        return Axis(length)
    if len(chain) == 1:
        (axis,) = chain
        order = axis.order
        if order is not None:
            order = torch.cat([order, torch.arange(end, length, device=order.device)])
        return replace(axis, tail=length - end, order=order)
    return ChainedAxis((*chain, Axis(length - end)) if length > end else tuple(chain))


def _grouped(tensor: Tensor, dim: int, groups: int) -> Tensor:
    return torch.unflatten(tensor, dim, (groups, tensor.shape[dim] // groups))
