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
        if isinstance(module, nn.TransformerEncoderLayer) and not _has_dense_weights(module):
            flags[name], module.activation_relu_or_gelu = module.activation_relu_or_gelu, 0
        if isinstance(module, nn.TransformerEncoder) and not _all_have_dense_weights(module):
            flags[name], module.use_nested_tensor = module.use_nested_tensor, False
    return flags


def restore_in_copy(model: nn.Module, flags: Mapping[str, int], copies: Mapping[int, nn.Module]) -> None:
    """Switch the fast path on again in copies, given by the id of the original, that have plain layers only."""
    for name, flag in flags.items():
        copied = copies.get(id(model.get_submodule(name)))
        if isinstance(copied, nn.TransformerEncoderLayer) and _has_dense_weights(copied):
            copied.activation_relu_or_gelu = flag
        if isinstance(copied, nn.TransformerEncoder) and _all_have_dense_weights(copied):
            copied.use_nested_tensor = bool(flag)


def _all_have_dense_weights(encoder: nn.TransformerEncoder) -> bool:
    return all(_has_dense_weights(layer) for layer in encoder.layers.children())


def _has_dense_weights(layer: nn.Module) -> bool:
    return all(isinstance(getattr(layer, name, None), (nn.Linear, NarrowLayer)) for name in ("linear1", "linear2"))
