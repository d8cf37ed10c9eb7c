"""DistributedDataParallel around the model."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def data_parallel(model: nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel around the user's module, if there is one."""
    while not isinstance(model, DistributedDataParallel):
        inner = getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return None
        model = inner
    return model


def require_unused_search(model: nn.Module) -> None:
    """Raise unless DDP searches for unused parameters: it would not reduce a pass that leaves parameters out."""
    ddp = data_parallel(model)
    if ddp is not None and not ddp.find_unused_parameters:
        raise ValueError(
            "this method leaves parameters out of some passes, and DistributedDataParallel would silently not "
            "reduce those gradients; wrap the model with find_unused_parameters=True"
        )
