"""Checks of what a user passes to `PartialSGD`: they raise, and change nothing."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from partialsgd.method import Meter, Method
from partialsgd.optimizers.param_groups import unwrapped


def check_arguments(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: Method,
    clip_norm: float | None,
    scaler: torch.amp.GradScaler | None,
    meter: Meter | None,
) -> list[Optimizer]:
    """Raise for an argument of the wrong kind, and return the optimizers as a list."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model comes first and must be an nn.Module, got {type(model).__name__}: "
            "write PartialSGD(model, optimizer, method)"
        )
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        hint = (
            f"; build it first: {optimizer.__name__}(model.parameters(), lr=0.1)" if isinstance(optimizer, type) else ""
        )
        raise TypeError(f"the optimizer must be a torch.optim.Optimizer or a list of them, got {optimizer!r}{hint}")
    if any(isinstance(unwrapped(o), torch.optim.LBFGS) for o in optimizers):
        raise NotImplementedError(
            "LBFGS evaluates the closure itself, so no step can be masked or measured; use another optimizer"
        )
    require_method(method)
    if isinstance(meter, type) or not (meter is None or (hasattr(meter, "requests") and hasattr(meter, "measure"))):
        raise TypeError(f"a meter must have the methods requests and measure, like ps.CriteriaMeter(); got {meter!r}")
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm must be positive, got {clip_norm}; for no clipping use None")
    # accelerate hides a scaler in its optimizers; gradients would be masked and clipped while still scaled.
    if scaler is None and any(getattr(o, "scaler", None) is not None for o in optimizers):
        raise ValueError("the optimizer was prepared with a gradient scaler: pass scaler=accelerator.scaler too")
    return optimizers


def require_method(method: object) -> None:
    """Raise if this is a name, or a function that was not called."""
    if not isinstance(method, Method):
        hint = f"; call it: methods.{getattr(method, '__name__', 'sam')}()" if callable(method) else ""
        hint = f"; write methods.{method}()" if isinstance(method, str) and method.isidentifier() else hint
        raise TypeError(f"the method must be a Method, got {method!r}{hint}")


def require_seed(seed: int) -> int:
    """The seed as an int: numpy's integers would draw other masks."""
    try:
        return operator.index(seed)
    except TypeError:
        raise TypeError(f"seed must be an integer, got {seed!r}") from None
