"""A copy of a model without `fully_shard`, which refuses to be copied: whole parameters, or their shapes alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from partialsgd._util import shards

_KEYS = ("__composable_api_state_key", "_is_fsdp_managed_module", "_fsdp_use_orig_params")


def gathered_copy(model: nn.Module) -> nn.Module:
    """A deep copy; if the model is sharded, each rank gets the whole of it, and all ranks must call this."""
    if not any(map(shards.is_sharded, model.parameters())):
        return copy.deepcopy(model)
    return _plain_copy(model, lambda p: shards.gathered(p).detach().clone())


def remove_own_hooks(model: nn.Module) -> None:
    """Remove the forward hooks that methods of this package have registered."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if type(hook).__module__.startswith("partialsgd.")]:
                del hooks[key]


def structure(model: nn.Module) -> nn.Module:
    """The model itself, or if it is sharded a copy with parameters on the meta device, which can be traced."""
    if not any(map(shards.is_sharded, model.parameters())):
        return model
    return _plain_copy(model, lambda p: torch.empty(p.shape, dtype=p.dtype, device="meta"))


def _plain_copy(model: nn.Module, values: Callable[[Tensor], Tensor]) -> nn.Module:
    for root in shards.fsdp_roots(model):
        shards.reset(root)  # the modules hold their sharded parameters then
    memo: dict[int, Any] = {id(p): nn.Parameter(values(p), p.requires_grad) for p in model.parameters()}
    for module in reversed(list(model.modules())):  # innermost first
        if id(module) not in memo:
            _copy_module(module, memo)
    copied: nn.Module = memo[id(model)]
    return copied


def _copy_module(module: nn.Module, memo: dict[int, Any]) -> None:
    kind = shards.class_of(module)
    memo[id(module)] = copied = kind.__new__(kind)
    state: dict[str, Any] = module.__getstate__()  # type: ignore[no-untyped-call]  # untyped in torch
    for key, value in state.items():
        if not key.startswith(_KEYS):
            kept = {k: v for k, v in value.items() if not _is_fsdps(v)} if key.endswith("_hooks") else value
            copied.__dict__[key] = copy.deepcopy(type(value)(kept) if kept is not value else value, memo)


def _is_fsdps(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed.")
