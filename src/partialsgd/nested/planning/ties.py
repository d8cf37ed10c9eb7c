"""Which entries of parameters belong to one unit: a union-find over indices of dimensions of parameters.

Every index of a dimension of a parameter (row 3 of a weight, entry 3 of a bias) has a number. Entries that can only be
removed together are tied; entries that cannot be removed are fixed, each with a reason. The number 0 is no entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor

NO_UNIT = 0


class Reason(NamedTuple):
    """The operation that ties or fixes units, and the module that ran it."""

    operation: str
    module: str

    def __str__(self) -> str:
        return f"{self.operation} in {self.module!r}" if self.module else self.operation


@final
@dataclass(frozen=True)
class Solution:
    """The units after all ties: the smallest number among the tied entries stands for each of them."""

    unit_of: Tensor
    is_fixed: Tensor

    def units(self, numbers: Tensor) -> Tensor:
        """Return the unit of each entry, and `NO_UNIT` for fixed ones."""
        units = self.unit_of[numbers]
        return torch.where(self.is_fixed[units], NO_UNIT, units)


@final
@dataclass
class Ties:
    """The numbers of the entries, and what was learnt about them."""

    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """The first number and the length of each dimension of a parameter that was used so far."""
    count: int = 1
    _pairs: list[Tensor] = field(default_factory=list)
    _attention_pairs: list[Tensor] = field(default_factory=list)
    _fixed: list[tuple[Tensor, Reason]] = field(default_factory=list)
    _mixed: list[tuple[Tensor, Reason]] = field(default_factory=list)

    def numbers(self, parameter: str, dim: int, length: int) -> Tensor:
        """Return the numbers of the entries of one dimension."""
        if (parameter, dim) not in self.offsets:
            self.offsets[parameter, dim] = self.count, length
            self.count += length
        first, _ = self.offsets[parameter, dim]
        return torch.arange(first, first + length, device="cpu")

    def tie(self, a: Tensor, b: Tensor, *, by_attention: bool = False) -> None:
        """Tie the entries at the same places of two tensors of one shape; where one is 0, nothing is tied."""
        a, b = compact(a, b)
        differs = (a != b) & (a != NO_UNIT) & (b != NO_UNIT)
        low, high = torch.minimum(a, b)[differs], torch.maximum(a, b)[differs]
        if len(low):
            keys = unique(low << 32 | high)
            pairs = self._attention_pairs if by_attention else self._pairs
            pairs.append(torch.stack([keys >> 32, keys & 0xFFFFFFFF]))

    def tie_along(self, numbers: Tensor, dims: Sequence[int], reason: Reason, *, by_attention: bool = False) -> None:
        """Tie all entries along some dimensions of a tensor: an operation mixes them."""
        first = numbers
        for dim in dims:
            first = first.narrow(dim, 0, 1)
        self.tie(numbers, first.expand_as(numbers), by_attention=by_attention)
        if not by_attention:
            self._mixed.append((unique(compact(numbers)[0]), reason))

    def fix(self, numbers: Tensor, reason: Reason) -> None:
        """Note that these entries cannot be removed."""
        if numbers.numel():
            self._fixed.append((unique(compact(numbers)[0]), reason))

    def solve(self, *, with_attention: bool) -> Solution:
        """Return the units; with attention, query, key and value of a head are one unit."""
        pairs = [*self._pairs, *(self._attention_pairs if with_attention else ())]
        none = torch.zeros(2, 0, dtype=torch.long, device="cpu")
        unit_of = connected(self.count, torch.cat(pairs, 1) if pairs else none)
        is_fixed = torch.zeros(self.count, dtype=torch.bool, device="cpu")
        for numbers, _ in self._fixed:
            is_fixed[unit_of[numbers]] = True
        is_fixed[NO_UNIT] = True
        return Solution(unit_of, is_fixed)

    def attention_entries(self) -> Tensor:
        """Return the entries that attention ties."""
        pairs = self._attention_pairs
        return unique(torch.cat(pairs, 1)) if pairs else torch.zeros(0, dtype=torch.long, device="cpu")

    def reason(self, numbers: Tensor, solution: Solution) -> Reason | None:
        """Return the first reason why these entries are fixed, or mixed into one unit."""
        units = unique(solution.unit_of[numbers[numbers != NO_UNIT]])
        for reasons in (self._fixed, self._mixed):
            for entries, reason in reasons:
                if torch.isin(solution.unit_of[entries[entries != NO_UNIT]], units).any():
                    return reason
        return None


def connected(count: int, pairs: Tensor) -> Tensor:
    """Return for each of `count` numbers the smallest number that pairs connect it with."""
    smallest = torch.arange(count, device="cpu")
    a, b = pairs
    while True:
        low = torch.minimum(smallest[a], smallest[b])
        new = smallest.scatter_reduce(0, a, low, "amin").scatter_reduce(0, b, low, "amin")
        # The number that stood for a follows a to its new one, so that long chains close quickly.
        new = new.scatter_reduce(0, smallest[a], low, "amin").scatter_reduce(0, smallest[b], low, "amin")
        new = new[new]
        if torch.equal(new, smallest):
            return smallest
        smallest = new


def compact(*tensors: Tensor) -> list[Tensor]:
    """Leave out the dimensions along which all tensors, of one shape, are expanded."""
    for dim in range(tensors[0].ndim):
        if all(t.stride(dim) == 0 or t.shape[dim] == 1 for t in tensors) and tensors[0].shape[dim] > 1:
            tensors = tuple(t.narrow(dim, 0, 1) for t in tensors)
    return list(tensors)


def varying_dims(numbers: Tensor) -> list[int]:
    """Return the dimensions along which the numbers are not all the same."""
    dims = []
    for dim in range(numbers.ndim):
        if numbers.shape[dim] > 1 and numbers.stride(dim) != 0:
            small = compact(numbers)[0]
            if not bool((small == small.narrow(dim, 0, 1)).all()):
                dims.append(dim)
    return dims


def unique(numbers: Tensor) -> Tensor:
    """Return the different numbers of a tensor, sorted."""
    different: Tensor = torch.unique(numbers)
    return different


def broadcast_shape(*shapes: Sequence[int]) -> torch.Size:
    """Return the shape that tensors of these shapes have together."""
    shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # untyped in torch
    return shape
