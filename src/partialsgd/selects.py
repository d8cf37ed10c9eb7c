"""p ⊙ new + (1 − p) ⊙ old, to the bit: numbers are selected as integers, so NaN, infinities and −0 survive.

On a CPU `torch.where` with a boolean condition is several times slower than integer arithmetic with 0 and 1,
which is exact because integers wrap; elsewhere, and for odd layouts, `torch.where` is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from partialsgd.scratch import Scratch

_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@final
class Selection:
    """One parameter's mask, with the integers that it is applied by."""

    def __init__(self, mask: Tensor, scratch: Scratch) -> None:
        self.mask = mask
        self._scratch = scratch
        self._inside: dict[torch.dtype, Tensor] = {}

    def keep_inside(self, tensor: Tensor) -> None:
        """tensor ← p ⊙ tensor: zero outside."""
        if (inside := self._integers([tensor])) is None:
            tensor.masked_fill_(~self.mask, 0)
        else:
            tensor.view(inside.dtype).mul_(inside)

    def save_outside(self, tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
        """saved ← (1 − p) ⊙ tensor."""
        for tensor, old in zip(tensors, saved, strict=True):
            if (inside := self._integers([tensor, old])) is None:
                old.copy_(tensor).masked_fill_(self.mask, 0)
            else:
                numbers = tensor.view(inside.dtype)
                torch.addcmul(numbers, numbers, inside, value=-1, out=old.view(inside.dtype))

    def restore_outside(self, tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
        """tensor ← p ⊙ tensor + (1 − p) ⊙ saved, with what `save_outside` has saved."""
        for tensor, old in zip(tensors, saved, strict=True):
            if (inside := self._integers([tensor, old])) is None:
                torch.where(self.mask, tensor, old, out=tensor)
            else:
                numbers = tensor.view(inside.dtype)
                torch.addcmul(old.view(inside.dtype), numbers, inside, out=numbers)

    def release(self) -> None:
        """Give the integers back: they are as large as the parameter."""
        for inside in self._inside.values():
            self._scratch.give_back(inside)
        self._inside.clear()

    def _integers(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """1 inside, 0 outside, as wide as the tensors' numbers; None where `torch.where` must do."""
        kind = _INTEGER.get(tensors[0].element_size())
        if kind is None or self.mask.device.type != "cpu":
            return None
        if any(t.stride() != self.mask.stride() or t.element_size() != kind.itemsize for t in tensors):
            return None
        if kind not in self._inside:
            self._inside[kind] = self._scratch.borrow(self.mask, kind).copy_(self.mask)
        return self._inside[kind]
