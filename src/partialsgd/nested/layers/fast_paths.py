"""torch's Transformer fast path, which in evaluation mode reads the weights of layers without calling them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from partialsgd.nested.layers.narrow import NarrowLayer


@contextmanager
def disabled() -> Iterator[None]:
    """Switch the fast path off everywhere: it writes zeros where inputs are padded, and so is another function."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def disable_where_unsafe(model: nn.Module) -> dict[str, int]:
    """Switch the fast path off in modules with a layer that has no dense weight; return the old flags by name."""
    flags: dict[str, int] = {}
    for name, module in model.named_modules():
        if (flag := _flag(module)) and not _has_dense_weights(module):
            flags[name] = getattr(module, flag)
            setattr(module, flag, type(flags[name])(0))
    return flags


def restore_in_copy(model: nn.Module, flags: Mapping[str, int], copies: Mapping[int, nn.Module]) -> None:
    """Switch the fast path on again in copies, given by the id of the original, that have plain layers only."""
    for name, flag in flags.items():
        copied = copies.get(id(model.get_submodule(name)))
        if copied is not None and _has_dense_weights(copied):
            setattr(copied, _flag(copied), flag)


def _flag(module: nn.Module) -> str:
    """Return the attribute that allows the fast path; 0 or False switches it off."""
    if isinstance(module, nn.TransformerEncoderLayer):
        return "activation_relu_or_gelu"
    return "use_nested_tensor" if isinstance(module, nn.TransformerEncoder) else ""


def _has_dense_weights(module: nn.Module) -> bool:
    layers = module.layers.children() if isinstance(module, nn.TransformerEncoder) else [module]
    children = (getattr(layer, name, None) for layer in layers for name in ("linear1", "linear2"))
    return all(isinstance(child, (nn.Linear, NarrowLayer)) for child in children)
