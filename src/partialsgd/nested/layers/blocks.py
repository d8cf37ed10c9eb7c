"""Products with a weight that is stored in blocks, without a copy of the blocks.

Blocks of rows lie behind each other in one piece of memory, so that the weight of any level is a view of it. Each block
has a storage of its own there: tools that take tensors of one storage for tied ones (accelerate does when it saves)
would drop all but the first. Blocks of columns are multiplied one by one, because fused optimizers copy a parameter
whose memory is transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx
from torch.utils.dlpack import from_dlpack

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DEVICES = ("cpu", "cuda")


def pack_rows(blocks: Sequence[nn.Parameter]) -> Tensor | None:
    """Move the blocks into one piece of memory and return it; None, and nothing moves, where that is not possible."""
    first = blocks[0]
    if first.dtype not in _DTYPES or first.device.type not in _DEVICES:
        return None
    if any(type(b) is not nn.Parameter or (b.dtype, b.device) != (first.dtype, first.device) for b in blocks):
        return None  # among others the shards of FSDP2
    if first.device.type == "cpu" and any(block.is_shared() for block in blocks):  # type: ignore[no-untyped-call]  # untyped
        return None  # other processes see this memory
    with torch.inference_mode(False), torch.no_grad():
        memory = torch.cat(list(blocks))
        for block, rows in zip(blocks, torch.split(memory, [len(block) for block in blocks]), strict=True):
            block.data = from_dlpack(rows)  # a tensor of the same memory whose storage begins there
    return memory


def is_packed(memory: Tensor | None, blocks: Sequence[nn.Parameter]) -> bool:
    """True if the blocks are the first rows of the memory."""
    pointer = 0 if memory is None else memory.data_ptr()
    for block in blocks:
        # Nothing else can have an address inside `memory` while it is referred to.
        if memory is None or type(block) is not nn.Parameter or block.data_ptr() != pointer:
            return False
        dims = zip(block.shape, block.stride(), memory.stride(), strict=True)
        if block.dtype != memory.dtype or any(size > 1 and ours != theirs for size, ours, theirs in dims):
            return False
        pointer += block.nbytes
    return True


def packed_rows(memory: Tensor | None, blocks: Sequence[nn.Parameter]) -> Tensor | None:
    """Return the weight of which the blocks are the rows as a view of their memory; None if they lie elsewhere now."""
    if memory is None or not _is_eager() or not is_packed(memory, blocks):
        return None
    weight = memory.narrow(0, 0, sum(len(block) for block in blocks))
    if torch.is_grad_enabled() and any(block.requires_grad for block in blocks):
        weight = _PackedRows.apply(weight, *blocks)  # type: ignore[no-untyped-call]  # untyped
    return weight


def sum_over_columns(x: Tensor, blocks: Sequence[nn.Parameter], bias: Tensor | None) -> Tensor:
    """Return Σ W_i x_i + b over blocks of columns, where x is split like the columns."""
    flat = x.reshape(-1, x.shape[-1])
    is_plain = _is_eager() and type(x) in (Tensor, nn.Parameter) and all(type(b) is nn.Parameter for b in blocks)
    if is_plain and x.is_floating_point() and not torch.is_autocast_enabled(x.device.type):
        y: Tensor = _ColumnProducts.apply(flat, bias, *blocks)  # type: ignore[no-untyped-call]  # untyped
    else:
        inputs = _split_like(flat, blocks)
        y = F.linear(inputs[0], blocks[0], bias)
        for block, columns in zip(blocks[1:], inputs[1:], strict=True):
            y = torch.addmm(y, columns, block.t())
    return y.view(*x.shape[:-1], y.shape[-1])


def _is_eager() -> bool:
    """False where torch.compile or torch.func may not see through addresses and autograd functions."""
    return not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


def _split_like(x: Tensor, blocks: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.split(x, [block.shape[1] for block in blocks], 1)


@final
class _PackedRows(Function):
    """The view of the memory as a function of its blocks; the gradient of each block is a view of the gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, *blocks: nn.Parameter) -> Tensor:
        ctx.blocks, ctx.versions = blocks, [block._version for block in blocks]
        return weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if [block._version for block in ctx.blocks] != ctx.versions:
            raise RuntimeError(
                "a weight was changed in place between forward and backward, so its gradient would be wrong: "
                "call backward before the optimizer steps or anything else writes into the parameters"
            )
        return None, *torch.split(gradient, [len(block) for block in ctx.blocks])


@final
class _ColumnProducts(Function):
    """Σ W_i x_i + b. Each gradient is written where it belongs, with no copy of the whole weight or its gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, bias: Tensor | None, *blocks: Tensor) -> Tensor:
        ctx.save_for_backward(x, *blocks)
        inputs = _split_like(x, blocks)
        y = F.linear(inputs[0], blocks[0], bias)
        for block, columns in zip(blocks[1:], inputs[1:], strict=True):
            torch.addmm(y, columns, block.t(), out=y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, *blocks = ctx.saved_tensors
        needs_x, needs_bias, *needs_blocks = ctx.needs_input_grad
        of_x = None
        if needs_x and torch.is_grad_enabled():  # for a second derivative; autograd does not see through `out`
            of_x = torch.cat([gradient @ block for block in blocks], 1)
        elif needs_x:
            of_x = torch.empty_like(x, memory_format=torch.contiguous_format)
            for block, columns in zip(blocks, _split_like(of_x, blocks), strict=True):
                torch.mm(gradient, block, out=columns)
        of_blocks = [
            gradient.t() @ columns if needed else None
            for columns, needed in zip(_split_like(x, blocks), needs_blocks, strict=True)
        ]
        return of_x, gradient.sum(0) if needs_bias else None, *of_blocks
