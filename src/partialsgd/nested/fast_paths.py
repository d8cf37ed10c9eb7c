"""torch's fast path through a Transformer, which in evaluation reads the weights of layers without calling them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

from partialsgd.nested.narrow import NarrowLayer


@contextmanager
def off() -> Iterator[None]:
    """Off for all: it also writes zeros where inputs are padded, and so computes another function."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def leave(model: nn.Module) -> dict[str, bool]:
    """Switch it off where a layer is two products and has no one weight; how it was, by the name of the encoder."""
    before = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer) and not _has_weights(module):
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder):
            before[name] = module.use_nested_tensor
            module.use_nested_tensor &= all(_has_weights(layer) for layer in module.layers.children())
    return before


def take(model: nn.Module, before: Mapping[str, bool]) -> None:
    """Switch it on again where all layers are plain."""
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer) and _has_weights(module):
            module.activation_relu_or_gelu = _fused_activation(module.activation)
        if isinstance(module, nn.TransformerEncoder) and all(_has_weights(layer) for layer in module.layers.children()):
            module.use_nested_tensor = before.get(name, module.use_nested_tensor)


def _has_weights(layer: nn.Module) -> bool:
    return all(isinstance(getattr(layer, name, None), (nn.Linear, NarrowLayer)) for name in ("linear1", "linear2"))


def _fused_activation(activation: object) -> int:
    """0, 1 or 2 for none, ReLU and GELU, as torch's constructor decides it."""
    if activation is F.relu or isinstance(activation, nn.ReLU):
        return 1
    return 2 if activation is F.gelu or isinstance(activation, nn.GELU) else 0
