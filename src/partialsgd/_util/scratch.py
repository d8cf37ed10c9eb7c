"""Buffers that are used again: on a CPU, fresh pages cost more than the copy that is written into them."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor


@final
class Scratch:
    """Tensors to borrow and give back. One that is not given back is simply lost to the others."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device], list[Tensor]] = {}

    def borrow(self, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of the shape, layout and device of `like`; what is in it is undefined."""
        kind = dtype or like.dtype
        free = self._free.get((like.shape, _strides(like), kind, like.device))
        return free.pop() if free else torch.empty_strided(like.shape, _strides(like), dtype=kind, device=like.device)

    def give_back(self, tensor: Tensor) -> None:
        self._free.setdefault((tensor.shape, tensor.stride(), tensor.dtype, tensor.device), []).append(tensor)


def _strides(like: Tensor) -> tuple[int, ...]:
    """Its own where it fills its memory, those of a contiguous tensor where it has holes."""
    dense = torch.ops.aten.is_non_overlapping_and_dense(like)
    return like.stride() if dense else torch.empty(like.shape, device="meta").stride()
