"""torch's fast path through a Transformer, which in evaluation reads the weights of layers without calling them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from partialsgd.nested.layers.narrow import NarrowLayer


@contextmanager
def off() -> Iterator[None]:
    """Off for all: it also writes zeros where inputs are padded, and so computes another function."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def leave(model: nn.Module) -> dict[str, int]:
    """Switch it off where a layer is two products and has no one weight; what was said before, by name."""
    before: dict[str, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer) and not _has_weights(module):
            before[name], module.activation_relu_or_gelu = module.activation_relu_or_gelu, 0
        if isinstance(module, nn.TransformerEncoder) and not _have_weights(module):
            before[name], module.use_nested_tensor = module.use_nested_tensor, False
    return before


def take(model: nn.Module, before: Mapping[str, int], copies: Mapping[int, nn.Module]) -> None:
    """In a copy, by the original's id, switch it on again where all layers are plain."""
    for name, said in before.items():
        copied = copies.get(id(model.get_submodule(name)))
        if isinstance(copied, nn.TransformerEncoderLayer) and _has_weights(copied):
            copied.activation_relu_or_gelu = said
        if isinstance(copied, nn.TransformerEncoder) and _have_weights(copied):
            copied.use_nested_tensor = bool(said)


def _have_weights(encoder: nn.TransformerEncoder) -> bool:
    return all(_has_weights(layer) for layer in encoder.layers.children())


def _has_weights(layer: nn.Module) -> bool:
    return all(isinstance(getattr(layer, name, None), (nn.Linear, NarrowLayer)) for name in ("linear1", "linear2"))
