"""dy ↦ its k largest entries: the backward pass of a linear layer, truncated (Sun et al. 2017).

With the same k outputs for the whole batch, dx = dy_k W_k and dW_k = dy_kᵀ x are products of small matrices, and all
other rows of dW are zero. Writing those zeros anew would cost as much as the products, so the memory of dW is used
again, if nobody else holds it, and only the rows that were written are cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Backward: TypeAlias = Callable[[Any, Tensor], tuple[Tensor | None, ...]]


@final
class Truncation:
    """One layer's truncated backward: a forward hook that is on for as long as a trained pass lasts."""

    def __init__(self, k: int, owner: str) -> None:
        self.k = k
        self.owner = owner
        self.is_on = False
        self._spare: Tensor | None = None
        self._written: Tensor | None = None
        self._received: Tensor | None = None
        self._held = self._version = 0

    @contextmanager
    def on(self) -> Iterator[None]:
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False

    def __call__(
        self, layer: nn.Linear, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], y: Tensor
    ) -> Tensor | None:
        """The layer's output as it is, with another backward behind it."""
        if not self.is_on or not y.requires_grad:
            return None
        # Autocast has made y from copies of lower precision; the gradient goes back through the same.
        given = args[0] if args else kwargs["input"]
        x, weight = given.to(y.dtype), layer.weight.to(y.dtype)
        bias = None if layer.bias is None else layer.bias.to(y.dtype)
        arguments = (x, weight, bias, y.detach(), self)
        replaced: Tensor = _Truncated.apply(*arguments)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return replaced

    def rows(self, gradient: Tensor) -> Tensor:
        """The rows that received gradient."""
        spare, written = self._spare, self._written
        if spare is None or written is None or self._received is None or gradient.data_ptr() != spare.data_ptr():
            return _is_not_zero(gradient)
        if gradient._version != self._version:  # something was added to it: a penalty, a second use of the layer
            return _is_not_zero(gradient)
        received = torch.zeros(len(gradient), dtype=torch.bool, device=gradient.device)
        return received.index_copy_(0, written, self._received)

    def from_rows(self, weight: Tensor, chosen: Tensor, values: Tensor) -> Tensor:
        """dW with these rows, and zeros elsewhere."""
        if torch.compiler.is_compiling():
            return torch.zeros_like(weight).index_copy_(0, chosen, values)
        spare, written = self._spare, self._written
        if spare is not None and written is not None and self._is_free(spare, weight):
            # What was added to it in place, by a penalty or by clipping, lies in other rows too.
            spare.index_fill_(0, written, 0) if spare._version == self._version else spare.zero_()
        else:
            spare = torch.zeros_like(weight)
            self._held = torch._C._storage_Use_Count(spare.untyped_storage()._cdata)
        spare[chosen] = values
        self._spare, self._written, self._received = spare, chosen, _is_not_zero(values)
        self._version = spare._version
        return spare.detach()  # another tensor of the same memory, which autograd takes without a copy

    def _is_free(self, spare: Tensor, weight: Tensor) -> bool:
        alike = spare.shape == weight.shape and spare.dtype == weight.dtype and spare.device == weight.device
        return alike and torch._C._storage_Use_Count(spare.untyped_storage()._cdata) == self._held


def _is_not_zero(rows: Tensor) -> Tensor:
    """Which rows hold a number that is not zero. On a CPU `any` over numbers takes five times as long."""
    return rows.abs().sum(1) != 0


def _as_forward_was(backward: Backward) -> Backward:
    """In the precision that the forward pass had, though backward may be called inside autocast."""

    def run(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if not torch.is_autocast_enabled(dy.device.type):
            return backward(ctx, dy)
        with torch.autocast(dy.device.type, enabled=False):
            return backward(ctx, dy)

    return run


@final
class _Truncated(torch.autograd.Function):
    @staticmethod
    def forward(  # with `ctx`: `setup_context` has torch look at the signature at every call
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, truncation: Truncation
    ) -> Tensor:
        ctx.truncation = truncation
        ctx.mark_dirty(y)  # so that y itself is returned, not a view of it: what follows may work in place
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @once_differentiable
    @_as_forward_was
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        truncation, whole, flat = ctx.truncation, dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        chosen = whole.abs().sum(0).topk(truncation.k, sorted=False).indices
        small = whole.index_select(1, chosen)
        dx = small @ weight.index_select(0, chosen) if needs_x else None
        dw = truncation.from_rows(weight, chosen, small.t() @ flat) if needs_weight else None
        return None if dx is None else dx.view(x.shape), dw, whole.sum(0) if needs_bias else None, None, None
