"""Bitwise selection: p ⊙ new + (1 − p) ⊙ old. Numbers are selected as integers, so NaN, infinities and −0 survive.

On a CPU `torch.where` with a boolean condition is several times slower than integer arithmetic with 0 and 1,
which is exact because integers wrap; elsewhere, and for odd layouts, `torch.where` is used. A mask of whole rows,
written as a column that is expanded, is applied by copying rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import final

import torch
from torch import Tensor

from partialsgd._util import shards

_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def over_rows(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """The mask of whole rows, which takes no memory but that of `rows`."""
    return rows.view(-1, *[1] * (len(shape) - 1)).expand(shape)


def rows_of(mask: Tensor) -> Tensor | None:
    """The rows of a mask that `over_rows` has made, True where they move; None for others."""
    if mask.ndim < 2 or any(mask.stride()[1:]) or not mask.numel():
        return None
    while mask.ndim > 1:
        mask = mask.select(1, 0)
    return mask


def by_rows(op: Callable[..., Tensor], *masks: Tensor) -> Tensor:
    """Apply an operation to masks; if all of them consist of whole rows, to the rows alone."""
    if any(map(shards.is_sharded, masks)):
        return shards.elementwise(partial(by_rows, op), *masks)
    rows = [r for mask in masks if (r := rows_of(mask)) is not None]
    return over_rows(op(*rows), masks[0].shape) if len(rows) == len(masks) else op(*masks)


@final
class Scratch:
    """A pool of buffers: on a CPU, fresh pages cost more than the copy that is written into them.

    A tensor that is not given back is simply lost to the pool.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device], list[Tensor]] = {}

    def borrow(self, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor of the shape, layout and device of `like`; of a sharded tensor give the part."""
        kind = dtype or like.dtype
        free = self._free.get((like.shape, _strides(like), kind, like.device))
        return free.pop() if free else torch.empty_strided(like.shape, _strides(like), dtype=kind, device=like.device)

    def borrow_all(self, likes: Iterable[Tensor]) -> list[Tensor]:
        return [self.borrow(like) for like in likes]

    def give_back(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self._free.setdefault((tensor.shape, tensor.stride(), tensor.dtype, tensor.device), []).append(tensor)


def _strides(like: Tensor) -> tuple[int, ...]:
    """The strides of `like`, or those of a contiguous tensor if `like` does not fill its memory."""
    dense = torch.ops.aten.is_non_overlapping_and_dense(like)
    return like.stride() if dense else torch.empty(like.shape, device="meta").stride()


@final
class Selection:
    """Applies the mask of one parameter to tensors of its shape; on a CPU by arithmetic on integers.

    For a sharded parameter it holds this rank's part of the mask, and is applied to this rank's parts of tensors."""

    def __init__(self, mask: Tensor, scratch: Scratch) -> None:
        self.mask = mask
        self._scratch = scratch
        self._inside: dict[torch.dtype, Tensor] = {}
        rows = rows_of(mask)
        # Elsewhere than on a CPU the host would wait for the number of rows.
        is_on_cpu = mask.device.type == "cpu"
        self._outside_rows = (~rows).nonzero().squeeze(1) if is_on_cpu and rows is not None else None

    def keep_inside(self, tensor: Tensor) -> None:
        """tensor ← p ⊙ tensor: zero outside."""
        if self._outside_rows is not None:
            tensor.index_fill_(0, self._outside_rows, 0)
        elif (inside := self._integers([tensor])) is None:
            tensor.masked_fill_(~self.mask, 0)
        else:
            tensor.view(inside.dtype).mul_(inside)

    def save_outside(self, tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
        """saved ← (1 − p) ⊙ tensor: copy what lies outside the mask."""
        for tensor, old in zip(tensors, saved, strict=True):
            if self._outside_rows is not None:
                old[: len(self._outside_rows)].copy_(tensor.index_select(0, self._outside_rows))
            elif (inside := self._integers([tensor, old])) is None:
                old.copy_(tensor).masked_fill_(self.mask, 0)
            else:
                numbers = tensor.view(inside.dtype)
                torch.addcmul(numbers, numbers, inside, value=-1, out=old.view(inside.dtype))

    def restore_outside(self, tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
        """tensor ← p ⊙ tensor + (1 − p) ⊙ saved, with what `save_outside` has saved."""
        for tensor, old in zip(tensors, saved, strict=True):
            if self._outside_rows is not None:
                tensor.index_copy_(0, self._outside_rows, old[: len(self._outside_rows)])
            elif (inside := self._integers([tensor, old])) is None:
                torch.where(self.mask, tensor, old, out=tensor)
            else:
                numbers = tensor.view(inside.dtype)
                torch.addcmul(old.view(inside.dtype), numbers, inside, out=numbers)

    def release(self) -> None:
        """Give the integers back: they are as large as the parameter."""
        while self._inside:
            self._scratch.give_back(self._inside.popitem()[1])

    def _integers(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """Return the mask as integers of the tensors' element size; None if `torch.where` has to be used instead."""
        kind = _INTEGER.get(tensors[0].element_size())
        if kind is None or self.mask.device.type != "cpu":
            return None
        if any(t.stride() != self.mask.stride() or t.element_size() != kind.itemsize for t in tensors):
            return None
        if kind not in self._inside:
            self._inside[kind] = self._scratch.borrow(self.mask, kind).copy_(self.mask)
        return self._inside[kind]
