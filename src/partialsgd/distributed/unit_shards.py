"""Tensors that are split by hidden units: where a coordinate is kept, and how a block of units gets to a rank and back.

Every coordinate has a home: each tensor is cut along one dimension into as many shards as there are ranks. A block is
the part of a tensor that one rank trains; it is collected from the homes and returned to them by one all-to-all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

import torch
import torch.distributed as dist
from torch import Tensor

from partialsgd._util.agreement import agree, device_of

Blocks: TypeAlias = Sequence[Sequence[Tensor]]
"""The indices of the units that each worker has, by worker and by group of units, in ascending order."""
Index: TypeAlias = dict[int, Tensor]
"""The selected positions along some dimensions of a tensor."""


class Axis(NamedTuple):
    """A group of units along one dimension of a tensor, each unit `times` in a row."""

    dimension: int
    group: int
    times: int


@final
@dataclass(frozen=True)
class SplitTensor:
    """The shape of a tensor of the whole network, and which of its dimensions count hidden units."""

    shape: torch.Size
    axes: tuple[Axis, ...]

    @property
    def home_dimension(self) -> int:
        """The dimension along which the tensor is cut into homes."""
        return self.axes[0].dimension

    def home(self, rank: int, ranks: int) -> tuple[int, int]:
        """The first position of a rank's shard, and its length; the last shards may be shorter, or empty."""
        length = self.shape[self.home_dimension]
        each = -(-length // ranks)
        start = min(rank * each, length)
        return start, min(each, length - start)

    def index(self, units: Sequence[Tensor]) -> Index:
        """The positions of a worker's units."""
        index = {}
        for dimension, group, times in self.axes:
            positions = units[group][:, None] * times + torch.arange(times)
            index[dimension] = positions.flatten()
        return index

    def index_at(self, home: tuple[int, int], units: Sequence[Tensor]) -> Index:
        """The positions of a worker's units within one shard."""
        index, (start, length) = self.index(units), home
        positions = index[self.home_dimension]
        index[self.home_dimension] = positions[(positions >= start) & (positions < start + length)] - start
        return index

    def size_of(self, index: Index, length: int) -> torch.Size:
        """The shape of the part with these positions, of a shard of this length."""
        shape = list(self.shape)
        shape[self.home_dimension] = length
        for dimension, positions in index.items():
            shape[dimension] = len(positions)
        return torch.Size(shape)


class Split(NamedTuple):
    """One tensor that is split: this rank's block of it, and this rank's shard."""

    layout: SplitTensor
    block: Tensor
    shard: Tensor


def select(tensor: Tensor, index: Index) -> Tensor:
    """Copy the part at these positions."""
    for dimension, positions in index.items():
        tensor = tensor.index_select(dimension, positions.to(tensor.device))
    return tensor.contiguous()


@final
class UnitExchange:
    """Moves blocks between the ranks of a group, and counts the bytes that this rank sends to others."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.bytes_sent = 0

    def to_homes(self, splits: Iterable[Split], blocks: Blocks) -> None:
        """Write every rank's block into the shards."""
        for same in _by_dtype(splits):
            sent = self._pieces(same, blocks)
            indices = [[self._index(split, worker, blocks) for split in same] for worker in range(self.ranks)]
            received = self._all_to_all(sent, _shapes(same, indices))
            for pieces, of_worker in zip(received, indices, strict=True):
                for split, piece, index in zip(same, pieces, of_worker, strict=True):
                    _write(split.shard, index, piece)

    def to_blocks(self, splits: Iterable[Split], blocks: Blocks) -> None:
        """Write what the shards hold into every rank's block."""
        for same in _by_dtype(splits):
            indices = [[self._index(split, worker, blocks) for split in same] for worker in range(self.ranks)]
            sent = [
                [select(split.shard, index) for split, index in zip(same, of_worker, strict=True)]
                for of_worker in indices
            ]
            places = self._pieces(same, blocks)
            received = self._all_to_all(sent, [[place.shape for place in of_home] for of_home in places])
            for pieces, of_home in zip(received, places, strict=True):
                for piece, place in zip(pieces, of_home, strict=True):
                    place.copy_(piece)

    def whole(self, split: Split) -> Tensor:
        """Gather the shards of all ranks into the whole tensor."""
        layout, dimension = split.layout, split.layout.home_dimension
        _, each = layout.home(0, self.ranks)
        shard = split.shard.movedim(dimension, 0)
        padded = shard.new_zeros((each, *shard.shape[1:]))
        padded[: len(shard)] = shard
        gathered = [torch.empty_like(padded) for _ in range(self.ranks)]
        dist.all_gather(gathered, padded, group=self.group)
        self.bytes_sent += (self.ranks - 1) * padded.nbytes
        return torch.cat(gathered)[: layout.shape[dimension]].movedim(0, dimension).contiguous()

    def mean(self, tensors: Sequence[Tensor], bases: Sequence[Tensor]) -> list[Tensor]:
        """The mean of each tensor over the ranks, exactly the base where all ranks have the base."""
        means: list[Tensor] = [torch.empty(0)] * len(tensors)
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            numbers = [i for i, t in enumerate(tensors) if t.dtype == dtype]
            total = torch.cat([(tensors[i] - bases[i]).flatten() for i in numbers])
            dist.all_reduce(total, group=self.group)
            self.bytes_sent += 2 * (self.ranks - 1) * total.nbytes // self.ranks
            parts = torch.split(total.div_(self.ranks), [tensors[i].numel() for i in numbers])
            for i, part in zip(numbers, parts, strict=True):
                means[i] = bases[i] + part.view_as(bases[i])
        return means

    def total(self, number: float) -> float:
        """The sum of a number over the ranks."""
        tensor = torch.tensor(number, dtype=torch.float64, device=device_of(self.group))
        dist.all_reduce(tensor, group=self.group)
        self.bytes_sent += 2 * (self.ranks - 1) * tensor.nbytes // self.ranks
        return float(tensor)

    def agree(self, number: int) -> bool:
        """True if all ranks have the same number."""
        self.bytes_sent += (self.ranks - 1) * 8
        return agree(number, self.group)

    def _index(self, split: Split, worker: int, blocks: Blocks) -> Index:
        """The positions of a worker's units in this rank's shard."""
        return split.layout.index_at(split.layout.home(self.rank, self.ranks), blocks[worker])

    def _pieces(self, same: Sequence[Split], blocks: Blocks) -> list[list[Tensor]]:
        """For each home, the parts of this rank's blocks that belong there, as views.

        Units are in ascending order, so that the part of each home is contiguous.
        """
        pieces = []
        for layout, block, _ in same:
            dimension, (_, each) = layout.home_dimension, layout.home(0, self.ranks)
            positions = layout.index(blocks[self.rank])[dimension]
            counts = torch.bincount(positions // each, minlength=self.ranks).tolist()
            pieces.append(torch.split(block, counts, dimension))
        return [list(of_home) for of_home in zip(*pieces, strict=True)]

    def _all_to_all(
        self, sent: Sequence[Sequence[Tensor]], shapes: Sequence[Sequence[torch.Size]]
    ) -> Iterator[list[Tensor]]:
        """Send to each rank its tensors, and give what each rank has sent, which has these shapes."""
        outgoing = [torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in sent]
        sizes = [[shape.numel() for shape in of_rank] for of_rank in shapes]
        buffer = torch.cat(outgoing)
        received = buffer.new_empty(sum(map(sum, sizes)))
        counts = [len(part) for part in outgoing]
        dist.all_to_all_single(received, buffer, list(map(sum, sizes)), counts, group=self.group)
        self.bytes_sent += (len(buffer) - counts[self.rank]) * buffer.element_size()
        for part, of_rank, lengths in zip(torch.split(received, list(map(sum, sizes))), shapes, sizes, strict=True):
            yield [piece.view(shape) for piece, shape in zip(torch.split(part, lengths), of_rank, strict=True)]


def _by_dtype(splits: Iterable[Split]) -> list[list[Split]]:
    groups: dict[torch.dtype, list[Split]] = {}
    for split in splits:
        groups.setdefault(split.block.dtype, []).append(split)
    return list(groups.values())


def _shapes(splits: Sequence[Split], indices: Sequence[Sequence[Index]]) -> list[list[torch.Size]]:
    return [
        [
            split.layout.size_of(index, split.shard.shape[split.layout.home_dimension])
            for split, index in zip(splits, of_worker, strict=True)
        ]
        for of_worker in indices
    ]


def _write(tensor: Tensor, index: Mapping[int, Tensor], values: Tensor) -> None:
    """Set the part at these positions; units lie along the first two dimensions only."""
    first, second = (index.get(dimension) for dimension in (0, 1))
    if first is not None and second is not None:
        tensor[first.to(tensor.device)[:, None], second.to(tensor.device)] = values
    elif first is not None:
        tensor[first.to(tensor.device)] = values
    elif second is not None:
        tensor[:, second.to(tensor.device)] = values
