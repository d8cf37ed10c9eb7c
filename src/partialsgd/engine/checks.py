"""What `PartialSGD` is given must be what it takes; what it hands out must not be what it has put on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from partialsgd.method import Meter, Method


def checked(
    model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], method: Method, meter: Meter | None
) -> list[Optimizer]:
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model comes first and must be an nn.Module, got {type(model).__name__}")
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    if not optimizers or not all(isinstance(o, Optimizer) for o in optimizers):
        raise TypeError(f"the optimizer must be a torch.optim.Optimizer or a list of them, got {optimizer!r}")
    if not isinstance(method, Method):
        hint = "; call it: methods.sam()" if callable(method) else ""
        raise TypeError(f"the method must be a Method, got {method!r}{hint}")
    if isinstance(meter, type) or not (meter is None or (hasattr(meter, "looks") and hasattr(meter, "measure"))):
        raise TypeError(f"the meter must have looks and measure, like ps.CriteriaMeter(every=50); got {meter!r}")
    return optimizers


def without_our_hooks(model: nn.Module) -> nn.Module:
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if type(hook).__module__.startswith("partialsgd.")]:
                del hooks[key]
    return model
