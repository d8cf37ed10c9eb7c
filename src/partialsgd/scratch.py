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
        """A tensor of the shape, strides and device of `like`; what is in it is undefined."""
        kind = dtype or like.dtype
        free = self._free.get((like.shape, like.stride(), kind, like.device))
        return free.pop() if free else torch.empty_like(like, dtype=kind, requires_grad=False)

    def give_back(self, tensor: Tensor) -> None:
        self._free.setdefault((tensor.shape, tensor.stride(), tensor.dtype, tensor.device), []).append(tensor)
