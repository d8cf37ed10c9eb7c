"""g ≈ ∇f(x) by a truncated backward pass, p = the rows that received gradient: meProp (Sun et al. 2017; Section 3.3).

Of the gradient dy that arrives at a linear layer's outputs only the k largest entries go on, to its weight and to the
layers below, so g is not the gradient of f at any point. `top_k` is what the paper makes of it. With the same k
outputs for the whole batch, dx = dy_k W_k and dW_k = dy_kᵀ x are products of small matrices.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from partialsgd import masks
from partialsgd._util import shards
from partialsgd._util.bitwise_select import over_rows
from partialsgd.masks import Entry, Mask
from partialsgd.method import Context, Method, everything
from partialsgd.methods._shared.graph_cut import hooks_of, new_owner
from partialsgd.methods._shared.settings import require_count
from partialsgd.parameters import unwrap

_log = logging.getLogger("partialsgd")


def meprop(k: int = 30, *, mask: bool = True) -> Method:
    """meProp: only the k largest entries of each linear layer's output gradient go on in the backward pass.

    In every `nn.Linear` but the last, the same k outputs for the whole batch, so that the backward pass is one of small
    matrices. Gradients of biases are whole. Rows of weights that received no gradient stay outside the mask; with
    `mask=False` every coordinate moves, as in the authors' code, where an optimizer with momentum moves those rows too.
    """
    require_count("k", k)
    name = f"meprop(k={k}, unified=True, mask={mask})"  # as in checkpoints from when there was a choice

    def build(model: nn.Module) -> Method:
        linear = [m for m in unwrap(model).modules() if isinstance(m, nn.Linear) and shards.class_of(m) is nn.Linear]
        if not linear:
            raise ValueError(
                f"{shards.class_of(unwrap(model)).__name__} has no nn.Linear whose backward could be truncated"
            )
        layers = [layer for layer in linear[:-1] if layer.out_features > k]
        if not layers:
            _log.warning(
                "meprop: no nn.Linear but the last has more than %d outputs, so nothing is truncated: plain training", k
            )
            return Method(name=name)
        owner = new_owner()
        for layer in layers:
            # First of all hooks: what others add to the output is not the layer's.
            layer.register_forward_hook(Truncation(k, owner), prepend=True, with_kwargs=True)

        def rows(context: Context) -> Mask:
            entries: dict[str, Entry] = {}
            names = {p: name for name, p in context.parameters.items()}
            for layer, truncation in hooks_of(context.parameters, Truncation, owner):
                weight = layer._parameters.get("weight")  # none where it is computed from others, which then move
                if weight is not None:
                    g = context.gradient.get(names[weight])
                    entries[names[weight]] = False if g is None else shards.elementwise(truncation.mask, g)
            return masks.from_tensors(context.parameters, entries, rest=True)

        @contextmanager
        def truncated(context: Context) -> Iterator[None]:
            truncations = [truncation for _, truncation in hooks_of(context.parameters, Truncation, owner)]
            for truncation in truncations:
                truncation.is_on = True
            try:
                yield
            finally:
                for truncation in truncations:
                    truncation.is_on = False

        return Method(mask=rows if mask else everything, within=truncated, name=name)

    return Method(build=build, name=name)


@final
class Truncation:
    """A forward hook that gives a linear layer's output the truncated backward, while `is_on`.

    All rows of dW but k are zero. Writing those zeros anew would cost as much as the products, so the memory of dW is
    used again, if nobody else holds it, and only the rows that were written are cleared.
    """

    def __init__(self, k: int, owner: str) -> None:
        self.k = k
        self.owner = owner
        self.is_on = False
        self._spare: Tensor | None = None
        self._written: Tensor | None = None
        self._received: Tensor | None = None
        self._held = self._version = 0

    def __call__(
        self, layer: nn.Linear, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], y: Tensor
    ) -> Tensor | None:
        if not self.is_on or not y.requires_grad:
            return None
        # Autocast has made y from copies of lower precision; the gradient goes back through the same.
        x, weight = (args[0] if args else kwargs["input"]).to(y.dtype), layer.weight.to(y.dtype)
        bias = None if layer.bias is None else layer.bias.to(y.dtype)
        arguments = (x, weight, bias, y.detach(), self)
        replaced: Tensor = _Truncated.apply(*arguments)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return replaced

    def mask(self, gradient: Tensor) -> Tensor:
        """Return the mask of the rows of dW that received gradient."""
        return over_rows(self.rows(gradient), gradient.shape)

    def rows(self, gradient: Tensor) -> Tensor:
        """Return True at the rows of dW that received gradient."""
        spare, written = self._spare, self._written
        if (
            spare is None
            or written is None
            or self._received is None
            or gradient.data_ptr() != spare.data_ptr()
            or gradient._version != self._version  # something was added to it: a penalty, a second use of the layer
        ):
            return _is_not_zero(gradient)
        received = torch.zeros(len(gradient), dtype=torch.bool, device=gradient.device)
        return received.index_copy_(0, written, self._received)

    def from_rows(self, weight: Tensor, chosen: Tensor, values: Tensor) -> Tensor:
        """Return dW with these rows, and zeros elsewhere."""
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
    """Return which rows are not all zero. On a CPU `any` over numbers takes five times as long."""
    return rows.abs().sum(1) != 0


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
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        device, autocasts = dy.device.type, torch.is_autocast_enabled(dy.device.type)
        # In the precision of the forward pass, though backward may be called inside autocast.
        with torch.autocast(device, enabled=False) if autocasts else nullcontext():
            x, weight = ctx.saved_tensors
            needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
            truncation, flat_dy, flat_x = ctx.truncation, dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
            chosen = flat_dy.abs().sum(0).topk(truncation.k, sorted=False).indices
            dy_k = flat_dy.index_select(1, chosen)
            dx = (dy_k @ weight.index_select(0, chosen)).view(x.shape) if needs_x else None
            dw = truncation.from_rows(weight, chosen, dy_k.t() @ flat_x) if needs_weight else None
            return dx, dw, flat_dy.sum(0) if needs_bias else None, None, None
