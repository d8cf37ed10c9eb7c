"""A dense weight that is computed only when its values are used; its shape, dtype and device are known at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_WITHOUT_VALUES = {
    *(getattr(Tensor, name).__get__ for name in ("dtype", "shape", "device", "layout", "ndim", "is_cuda")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point),
}


@final
class LazyWeight(Tensor):
    """T5 reads the dtype of a layer's weight at each call, which should not cost a product of matrices."""

    compute: Callable[[], Tensor]

    @staticmethod
    def __new__(cls, like: Tensor, shape: Sequence[int], compute: Callable[[], Tensor]) -> LazyWeight:
        lazy: LazyWeight = Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)
        lazy.compute = compute
        return lazy

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function in _WITHOUT_VALUES:
            default = super().__torch_function__
            return default(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # untyped in torch
        args, kwargs = tree_map(_computed, (args, dict(kwargs or {})))
        return function(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub says a plain function, its docs a class method
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map(_computed, (args, dict(kwargs or {})))
        return function(*args, **kwargs)


def _computed(value: Any) -> Any:
    if not isinstance(value, LazyWeight):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        compute = value.compute
    return compute()
