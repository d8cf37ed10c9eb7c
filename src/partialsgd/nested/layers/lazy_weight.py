"""The dense weight of a layer that has none: known by its shape, dtype and device, and made when it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_KNOWN = {getattr(Tensor, name).__get__ for name in ("dtype", "shape", "device", "layout", "ndim", "is_cuda")} | {
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.is_floating_point,
}


@final
class LazyWeight(Tensor):
    """T5 asks its layers for the dtype of their weight at each call; a product of matrices is too much of an answer."""

    make: Callable[[], Tensor]

    @staticmethod
    def __new__(cls, like: Tensor, shape: Sequence[int], make: Callable[[], Tensor]) -> LazyWeight:
        known: LazyWeight = Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)
        known.make = make
        return known

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function in _KNOWN:
            known = super().__torch_function__
            return known(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # torch does not annotate it
        args, kwargs = tree_map(_made, (args, dict(kwargs or {})))
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub says a plain function, its docs a class method
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map(_made, (args, dict(kwargs or {})))
        return function(*args, **kwargs)


def _made(value: Any) -> Any:
    if not isinstance(value, LazyWeight):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        make = value.make
    return make()
