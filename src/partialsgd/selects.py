"""p ⊙ new + (1 − p) ⊙ old, to the bit: exact selection, without arithmetic on the values.

Values are selected as integers, so that NaN, infinities and signed zeros outside the mask survive. On a
CPU `torch.where` with a boolean condition is several times slower than the integer kernels, which are
used in pieces that stay in its cache; elsewhere, and for odd layouts, `torch.where` is the definition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_PIECE = 1 << 16
_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def keep_inside(mask: Tensor, tensor: Tensor) -> None:
    """tensor ← p ⊙ tensor, in place: zero where the mask is False."""
    if not _is_fast(mask, [tensor]):
        tensor.masked_fill_(~mask, 0)
        return
    for inside, (piece,) in _pieces(mask, [tensor]):
        piece.bitwise_and_(inside.neg_())


def save_outside(mask: Tensor, tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
    """saved ← (1 − p) ⊙ tensor: what `restore_outside` puts back."""
    if not _is_fast(mask, [*tensors, *saved]):
        for tensor, old in zip(tensors, saved, strict=True):
            old.copy_(tensor).masked_fill_(mask, 0)
        return
    for inside, pieces in _pieces(mask, [*tensors, *saved]):
        outside = inside.sub_(1)
        for piece, old in zip(pieces[: len(tensors)], pieces[len(tensors) :], strict=True):
            torch.bitwise_and(piece, outside, out=old)


def restore_outside(mask: Tensor, tensors: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
    """tensor ← p ⊙ tensor + (1 − p) ⊙ saved, for what `save_outside` saved of the same tensors."""
    if not _is_fast(mask, [*tensors, *saved]):
        for tensor, old in zip(tensors, saved, strict=True):
            torch.where(mask, tensor, old, out=tensor)
        return
    for inside, pieces in _pieces(mask, [*tensors, *saved]):
        for piece, old in zip(pieces[: len(tensors)], pieces[len(tensors) :], strict=True):
            torch.addcmul(old, piece, inside, out=piece)  # integers: old is 0 wherever inside is 1


def _is_fast(mask: Tensor, tensors: Sequence[Tensor]) -> bool:
    size = tensors[0].element_size()
    return (
        mask.device.type == "cpu"
        and mask.numel() >= 4096
        and size in _INTEGER
        and mask.is_contiguous()
        and all(t.is_contiguous() and t.element_size() == size for t in tensors)
    )


def _pieces(mask: Tensor, tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
    integer = _INTEGER[tensors[0].element_size()]
    inside = torch.empty(min(_PIECE, mask.numel()), dtype=integer)
    flat = [torch.split(t.detach().view(-1).view(integer), _PIECE) for t in tensors]
    for piece_of_mask, *pieces in zip(torch.split(mask.view(-1).view(torch.int8), _PIECE), *flat, strict=True):
        yield inside[: len(piece_of_mask)].copy_(piece_of_mask), pieces
