"""Configs from a file: they choose sizes, within those of the weights beside them, and no code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

# Keys that choose code, or that fetch something: attention kernels, remote classes, quantizers, weights of a backbone.
_CODE = (
    "_implementation",
    "auto_map",
    "custom_",
    "trust_remote_code",
    "quantization_config",
    "use_pretrained_backbone",
)
_FREE = 2**24
"""Numbers up to here are accepted beside small weights: lengths, token ids and tables that no weight shows."""
_TIES = 8
"""A class may make a tied parameter several times before it ties it."""


def without_code(value: Any) -> Any:
    """Return a config without the keys that choose code, also in the configs inside it."""
    if isinstance(value, list):
        return [without_code(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {key: without_code(inner) for key, inner in value.items() if not any(word in f"_{key}" for word in _CODE)}


def require_fitting(config: Mapping[str, Any], build: Callable[[], nn.Module], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a config of a larger model than the weights have numbers for, before anything of it is allocated."""
    numbers = sum(tensor.numel() for tensor in tensors.values())
    for path, value in _integers(config):
        if abs(value) > max(numbers, _FREE):
            raise _too_large(f"{path} is {value}", numbers)
    with torch.device("meta"), _at_most(_TIES * len(tensors), _TIES * numbers, numbers):
        model = build()
    buffers = dict(model.named_buffers())
    stored = sum(buffers[name].numel() for name in model.state_dict().keys() & buffers.keys())
    if sum(parameter.numel() for parameter in model.parameters()) + stored > numbers:
        raise _too_large("its model has more", numbers)
    if any(buffer.numel() > max(numbers, _FREE) for buffer in buffers.values()):
        raise _too_large("its tables have more", numbers)


def _integers(value: Any, path: str = "config") -> Iterator[tuple[str, int]]:
    if isinstance(value, int):
        yield path, value
    elif isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _integers(inner, f"{path}[{key!r}]")


@contextmanager
def _at_most(count: int, size: int, numbers: int) -> Iterator[None]:
    """Raise as soon as this thread makes more parameters, or larger ones, than these."""
    thread, made_count, made_size = threading.get_ident(), 0, 0

    def register(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal made_count, made_size
        if parameter is not None and threading.get_ident() == thread:
            made_count, made_size = made_count + 1, made_size + parameter.numel()
            if made_count > count or made_size > size:
                raise _too_large("its model has more", numbers)

    handle = register_module_parameter_registration_hook(register)
    try:
        yield
    finally:
        handle.remove()


def _too_large(what: str, numbers: int) -> ValueError:
    return ValueError(
        f"the config in the checkpoint does not belong to its weights, which have {numbers} numbers: {what}; "
        "take another copy, or load(directory, model) with a freshly built one"
    )
