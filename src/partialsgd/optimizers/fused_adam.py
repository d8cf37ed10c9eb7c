"""Fused Adam on a CPU, a piece at a time: held coordinates are put back before they leave the cache.

The fused kernel works coordinate by coordinate, so that calling it for one piece of a tensor after another gives
the same bits; saved and restored piece by piece, what lies outside the mask is read from memory once, not four times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from partialsgd._util import shards
from partialsgd._util.bitwise_select import rows_of
from partialsgd.optimizers.capabilities import has_step_hooks

_PIECE = 1 << 16  # twice the number of coordinates that torch gives one thread
_KERNELS = frozenset({"aten::_fused_adam_", "aten::_fused_adamw_"})


def is_piecewise(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> bool:
    """True if this parameter is large, and only a kernel that can be called in pieces moves it."""
    if type(optimizer) not in (Adam, AdamW) or not group.get("fused") or parameter.numel() <= _PIECE:
        return False
    tensors = [parameter, parameter.grad, *optimizer.state.get(parameter, {}).values()]
    return (
        not has_step_hooks(optimizer)
        and not shards.is_sharded(parameter)
        and parameter.device.type == "cpu"
        and parameter.dtype == torch.float32
        and all(isinstance(t, Tensor) and t.is_contiguous() for t in tensors)
    )


@final
class Piecewise(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate it
    """Makes fused steps inside this mode leave coordinates outside the masks of their parameters unchanged."""

    def __init__(self, masks: Mapping[Tensor, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self._masks = masks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name not in _KERNELS:
            return func(*args, **(kwargs or {}))
        columns = [column for column in args if isinstance(column, (list, tuple))]  # parameters, gradients, moments, …
        whole = [k for k, parameter in enumerate(columns[0]) if parameter not in self._masks]
        if whole:
            func(*([column[k] for k in whole] if column else [] for column in columns), **(kwargs or {}))
        for k, parameter in enumerate(columns[0]):
            if parameter in self._masks:
                row = [column[k] if column else None for column in columns]
                step = _step if rows_of(self._masks[parameter]) is None else _step_rows
                step(func, self._masks[parameter], row, kwargs or {})
        return None


def _step_rows(kernel: Any, mask: Tensor, row: Sequence[Tensor | None], options: Mapping[str, Any]) -> None:
    """Step a parameter that moves by whole rows: they are taken out, stepped and put back; the others are not read."""
    rows = rows_of(mask)
    assert rows is not None  # the caller has looked
    inside = rows.nonzero().squeeze(1)
    is_of_rows = [t is not None and t.shape == mask.shape for t in row]
    taken = [t.index_select(0, inside) if t is not None and has else t for t, has in zip(row, is_of_rows, strict=True)]
    kernel(*([] if t is None else [t] for t in taken), **options)
    for k, (t, new) in enumerate(zip(row, taken, strict=True)):
        if t is not None and new is not None and is_of_rows[k] and k != 1:  # the gradient is read only
            t.detach()[inside] = new


def _step(kernel: Any, mask: Tensor, row: Sequence[Tensor | None], options: Mapping[str, Any]) -> None:
    """Step one parameter. Its row is the parameter, its gradient, its moments, and the count of its steps."""
    columns = [t.detach().view(-1) if t is not None and t.shape == mask.shape else t for t in row]
    split = [torch.split(t, _PIECE) if t is not None and t.dim() == 1 else t for t in columns]
    numbers = [[piece.view(torch.int32) for piece in t] for k, t in enumerate(split) if isinstance(t, tuple) and k != 1]
    inside, *saved = torch.empty(1 + len(numbers), _PIECE, dtype=torch.int32).unbind()
    for number, piece_of_mask in enumerate(torch.split(mask.view(-1).view(torch.int8), _PIECE)):
        if len(piece_of_mask) < _PIECE:
            inside, *saved = (buffer[: len(piece_of_mask)] for buffer in (inside, *saved))
        inside.copy_(piece_of_mask)
        held = [pieces[number] for pieces in numbers]
        for piece, old in zip(held, saved, strict=True):
            torch.addcmul(piece, piece, inside, value=-1, out=old)
        kernel(*([] if t is None else [t[number]] if isinstance(t, tuple) else [t] for t in split), **options)
        for piece, old in zip(held, saved, strict=True):
            torch.addcmul(old, piece, inside, out=piece)
