"""`shard`: parameters, gradients and optimizer state in parts over the ranks, by torch's `fully_shard` (FSDP2).

A level gathers what it runs and nothing else: the parameters of a nested layer lie in shares, one for each set of
levels that uses them, and each share is a unit of `fully_shard` (see `nested.layers.base`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch import nn

from partialsgd._util import shards
from partialsgd.nested.layers.base import NestedLayer, NestedModule
from partialsgd.nested.layers.batch_norm import SeparateBatchNorm
from partialsgd.nested.layers.depth import ShortenedBlocks
from partialsgd.parameters import closest, matches, unwrap

Model = TypeVar("Model", bound=nn.Module)


def shard(model: Model, *, mesh: Any = None, blocks: Sequence[str] | None = None, **options: Any) -> Model:
    """Shard a model, nested or not, over the ranks by `fully_shard`, in place, and return it.

    Units, whose parameters are gathered together, are: each share of a nested layer, which are the parameters that one
    set of levels uses; each module that some level leaves out; each element of an `nn.ModuleList`, or the modules that
    the patterns `blocks` name; and the model with the rest. Names of parameters and keys of the state dict stay.

    `mesh` and `options` are those of `fully_shard`, such as `reshard_after_forward` and `mp_policy`. All ranks must
    have the same weights before it. The parameters are new: build the optimizer and `PartialSGD` afterwards.
    If it refuses the model, the model is unchanged.
    """
    _check(model)
    chosen = _blocks(model, blocks)
    from torch.distributed.fsdp import fully_shard

    for module in reversed(list(model.modules())):  # innermost first
        if isinstance(module, NestedLayer):
            for share in module.split_into_shares():
                fully_shard(share, mesh=mesh, **options)
        elif module in chosen and module is not model:
            fully_shard(module, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def _check(model: nn.Module) -> None:
    """Raise if the model cannot be sharded."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"the first argument of shard must be an nn.Module, got {type(model).__name__}")
    if unwrap(model) is not model:
        raise ValueError("shard the model itself, before torch.compile and in place of DistributedDataParallel")
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "shard needs a process group: start the script by torchrun, and call "
            "torch.distributed.init_process_group() first"
        )
    if shards.fsdp_roots(model):
        raise ValueError("fully_shard was applied to a part of the model already; shard does all of it")
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise ValueError(
                f"{name!r} is a single number, which fully_shard cannot divide; make it a tensor of shape (1,)"
            )


def _blocks(model: nn.Module, patterns: Sequence[str] | None) -> set[nn.Module]:
    """The modules that are units, beside shares of layers and the model itself."""
    chosen: set[nn.Module] = set()
    if patterns is None:
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        chosen = {block for blocks in lists for block in blocks._modules.values() if block is not None}
    else:
        names = {name: module for name, module in model.named_modules() if name}
        for pattern in (patterns,) if isinstance(patterns, str) else patterns:
            found = {m for name, m in names.items() if matches(name, pattern) and not _is_inside(name, pattern)}
            if not found:
                raise ValueError(f"blocks names {pattern!r}, which matches no module; {closest(pattern, names)}")
            chosen |= found
    for module in model.modules():
        if isinstance(module, NestedModule) and not isinstance(module, (NestedLayer, SeparateBatchNorm)):
            chosen |= _left_out(module)
    containers = (nn.ModuleList, nn.ModuleDict, NestedLayer, ShortenedBlocks)  # never called, or made of shares
    return {module for module in chosen if not isinstance(module, containers)}


def _is_inside(name: str, pattern: str) -> bool:
    """True if the pattern matches a module around this one."""
    outer = name.rpartition(".")[0]
    return bool(outer) and matches(outer, pattern)


def _left_out(module: NestedModule) -> set[nn.Module]:
    """The child modules that some level does not use."""
    used = [set(module.members(level)) for level in module.switch.levels]
    everywhere = set.intersection(*used)
    return {m for members in used for m in members if isinstance(m, nn.Module) and m not in everywhere}
