"""A pretended accelerator: torch's device "pretended", whose tensors compute on the CPU but may not be mixed with it.

No GPU is needed to find the code that would fail on one, or that would make the host wait for it:

- A tensor on the device does not mix with CPU tensors, except where CUDA allows it: a CPU tensor without dimensions
  in a pointwise operation, and CPU tensors as indices. Everything else raises, as it does on a GPU.
- The host cannot see the numbers: `.numpy()` raises. Whatever brings a number, or a shape that depends on numbers, to
  the host is a *read*: on a GPU the host would wait there until all queued work is done. `watch()` counts the reads,
  with the line of code that made each one.
- The device has a random generator of its own, as a GPU has.
- Backward runs in a thread of the device, as on a GPU.

The numbers are those of the CPU, so a training on the device must give the same bits as on the CPU.

Importing this module registers the device for the whole process; `torch.accelerator` and the libraries that ask it
then see an accelerator. So the tests that import it run in processes of their own: see `test_device.py`.

What it cannot show: the kernels, rounding, speed and memory of a real GPU, autocast's cache of weights (here every use
of a weight casts it anew), `torch.compile`, and several devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from partialsgd.testing.problems import Problem
from tests.device.call_site import line_of_code

NAME = "pretended"
DEVICE = torch.device("privateuseone", 0)  # torch's name for a device from outside; it is "pretended" from below on
_HOST = torch.device("cpu")

# ---------------------------------------------------------------------------------------------------------------------
# Counting: what the host waits for.


@dataclass
class Traffic:
    """The transfers between host and device while `watch()` was on, each with the line of code that asked for it."""

    reads: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The host waited for the device: (operation, line of code)."""
    late: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Copies to the host with `non_blocking=True`: nobody waits, and the numbers arrive later."""
    uploads: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Copies to the device that block the host, as every copy from pageable memory does on CUDA."""


_watching: list[Traffic] = []


@contextmanager
def watch() -> Iterator[Traffic]:
    """Count the transfers inside the block, those of the device's backward thread included."""
    traffic = Traffic()
    _watching.append(traffic)
    try:
        yield traffic
    finally:
        _watching.remove(traffic)


def _count(kind: str, operation: str) -> None:
    for traffic in _watching:
        getattr(traffic, kind)[operation, line_of_code()] += 1


# ---------------------------------------------------------------------------------------------------------------------
# The tensor.


class Pretended(Tensor):
    """A tensor on the device. It holds a CPU tensor, and every operation on it goes through `_run`."""

    _inside: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inside: Tensor) -> Pretended:
        made: Pretended = Tensor._make_wrapper_subclass(
            cls,
            inside.size(),
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            device=DEVICE,
        )
        made._inside = inside
        return made

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(kind is not Pretended and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # another wrapper, such as a weight that is not computed yet, goes first
        return _run(operation, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]  # printing reads; for a test that fails it may
        return f"Pretended({self._inside!r})"

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    def tolist(self) -> Any:
        _count("reads", "tolist")
        return self._inside.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() first.")
        _count("reads", "numpy")
        return self._inside.detach().numpy()

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def data_ptr(self) -> int:
        return self._inside.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self._inside.untyped_storage()

    def __deepcopy__(self, memo: dict[int, Any]) -> Pretended:
        if id(self) not in memo:
            if not self.is_leaf:
                raise RuntimeError("only leaves of the graph support the deepcopy protocol")
            copied = Pretended(self._inside.clone()).requires_grad_(self.requires_grad)
            if isinstance(self, nn.Parameter):
                copied._is_param = True  # torch's own mark of a parameter that is a subclass
            if self.grad is not None:
                copied.grad = self.grad.__deepcopy__(memo)
            memo[id(self)] = copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Reduce as torch does on devices without storages, so that `torch.load(weights_only=True)` reads it."""
        _count("reads", "save")
        made = self._inside.detach(), self.dtype, str(self.device), self.requires_grad
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, made


def to_device(module: nn.Module, device: torch.device | str = DEVICE) -> nn.Module:
    """`module.to(device)`, with the same parameter objects before and after, as between a CPU and a GPU.

    For a subclass of Tensor torch makes new parameters, and two of one that is tied, unless it is told to swap.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def on_device(problem: Problem) -> Problem:
    """The same problem with its model on the device; it moves its batches there itself."""
    build = problem.build
    return replace(problem, build=lambda: to_device(build()))


# ---------------------------------------------------------------------------------------------------------------------
# The operations.

_READS = {
    "_local_scalar_dense": "item",  # .item(), float(), int(), bool(), `if tensor:`, math.isfinite(tensor)
    "equal": "equal",
    "allclose": "allclose",
    "is_nonzero": "is_nonzero",
    "nonzero": "nonzero",
    "nonzero_numpy": "nonzero",
    "masked_select": "masked_select",
    "_unique": "unique",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique",
    "bincount": "bincount",
    "_linalg_check_errors": "linalg",
}
"""Operations whose result, or the shape of it, the host must know."""

_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_SCALAR_ALLOWED = {"fill_", "fill", "masked_fill", "masked_fill_", *_INDEXING}
"""Operations that are not marked as pointwise, and still take a CPU tensor without dimensions on CUDA."""


def _run(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = operation.overloadpacket.__name__
    if name == "copy_":
        return _copy(*args, **kwargs)
    if name == "_to_copy":
        return _to_copy(operation, args, kwargs)
    tensors = list(_tensors((args, kwargs)))
    on_device = [tensor for tensor in tensors if isinstance(tensor, Pretended)]
    host = [tensor for tensor in tensors if not isinstance(tensor, Pretended)]
    _refuse_mixing(operation, name, args, kwargs, on_device, host)
    _count_reads(name, args, kwargs)
    inner_args, inner_kwargs = _map(_inner, args), {key: _map(_inner, value) for key, value in kwargs.items()}
    if torch.Tag.nondeterministic_seeded in operation.tags:
        if isinstance(kwargs.get("generator"), torch.Generator):
            raise RuntimeError(f"Expected a {NAME!r} device type for generator but found 'cpu'")
        with _drawing():
            result = operation(*inner_args, **inner_kwargs)
    else:
        result = operation(*inner_args, **inner_kwargs)
    if operation._schema.is_mutable:
        _require_same_shape(name, on_device)
    by_inner = {id(tensor._inside): tensor for tensor in on_device}
    return _map(lambda x: _outer(x, by_inner), result)


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if isinstance(source, Pretended) and not isinstance(target, Pretended):
        _count("late" if non_blocking else "reads", "copy to host")
    elif isinstance(target, Pretended) and not isinstance(source, Pretended) and not non_blocking:
        _count("uploads", "copy to device")
    _inner(target).copy_(_inner(source))
    return target


def _to_copy(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    source, target = args[0], kwargs.get("device") or args[0].device
    goes_to_host = isinstance(source, Pretended) and target.type == "cpu"
    if goes_to_host:
        _count("late" if kwargs.get("non_blocking") else "reads", "copy to host")
    options = {key: _inner(value) for key, value in kwargs.items() if key not in ("pin_memory", "non_blocking")}
    copied: Tensor = operation(_inner(source), **options)
    return copied if goes_to_host else Pretended(copied)


def _refuse_mixing(
    operation: Any,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    on_device: Sequence[Tensor],
    host: Sequence[Tensor],
) -> None:
    if not (host and on_device):
        return
    takes_scalars = torch.Tag.pointwise in operation.tags or name in _SCALAR_ALLOWED
    takes_scalars |= name.startswith(("_foreach_", "_fused_"))
    indices = {id(index) for index in args[1] if index is not None} if name in _INDEXING else set()
    written = {id(tensor) for tensor in _written(operation, args, kwargs)}
    for tensor in host:
        is_scalar = takes_scalars and tensor.dim() == 0
        if id(tensor) in written or not (is_scalar or id(tensor) in indices):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! "
                f"(a CPU tensor of shape {tuple(tensor.shape)} in {name}, at {line_of_code()})"
            )


def _count_reads(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if name in _READS:
        _count("reads", _READS[name])
    elif name == "repeat_interleave" and kwargs.get("output_size") is None:
        _count("reads", "repeat_interleave")
    elif name in _INDEXING:
        indices = [index for index in args[1] if index is not None]
        is_boolean = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        # x[mask] = number becomes masked_fill on CUDA, which needs no positions.
        fills = name not in ("index", "_unsafe_index") and args[2].dim() == 0
        if is_boolean and not fills:
            _count("reads", "boolean index")
        if any(not isinstance(index, Pretended) for index in indices):
            _count("uploads", "index")


def _written(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The arguments that the operation writes into."""
    for number, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[number] if number < len(args) else kwargs.get(argument.name))


def _require_same_shape(name: str, tensors: Sequence[Pretended]) -> None:
    for tensor in tensors:
        if tensor.size() != tensor._inside.size() or tensor.stride() != tensor._inside.stride():
            raise NotImplementedError(f"{name} changes the shape of a tensor in place, which {DEVICE} cannot do")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_map(change, part) for part in value)
    return change(value)


def _outer(value: Any, by_inner: dict[int, Pretended]) -> Any:
    """A result on the device; the result of an operation in place is its argument itself."""
    if not isinstance(value, Tensor):
        return value
    return by_inner[id(value)] if id(value) in by_inner else Pretended(value)


def _inner(value: Any) -> Any:
    if isinstance(value, Pretended):
        return value._inside
    return _HOST if isinstance(value, torch.device) and value.type == NAME else value


# ---------------------------------------------------------------------------------------------------------------------
# The device: its random generator, and what torch must know of it.

_generator = torch.Generator()
"""Holds the state of the device's generator between two operations that draw."""


@contextmanager
def _drawing() -> Iterator[None]:
    """The CPU's kernels draw from the generator of the device, and leave the CPU's own as it was."""
    host = torch.get_rng_state()
    torch.set_rng_state(_generator.get_state())
    try:
        yield
    finally:
        _generator.set_state(torch.get_rng_state())
        torch.set_rng_state(host)


class _Module:
    """`torch.pretended`: the functions that torch and its users expect of a device's module."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        _generator.manual_seed(seed)

    def get_rng_state(self, device: torch.device | int = 0) -> Tensor:
        return _generator.get_state()

    def set_rng_state(self, state: Tensor, device: torch.device | int = 0) -> None:
        _generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, device: torch.device | int = 0) -> None:
        _count("reads", "synchronize")

    def current_stream(self, device: torch.device | int = 0) -> _Stream:
        return _Stream()


class _Stream:
    """Everything is done when it is asked for, so that events have come when they are recorded."""

    def record_event(self) -> _Stream:
        return self

    def synchronize(self) -> None:
        """A late copy has arrived."""


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
_kernels = torch.library.Library("aten", "IMPL")  # registrations live as long as this object
# Torch's factories (zeros, randn, arange, ...) and `.to(device)` call one of these two, and then fill or copy.


def _empty(size: Sequence[int], dtype: Any = None, *_: object, memory_format: Any = None, **__: object) -> Tensor:
    return Pretended(torch.empty(size, dtype=dtype, device=_HOST, memory_format=memory_format))


def _empty_strided(size: Sequence[int], stride: Sequence[int], dtype: Any = None, *_: object, **__: object) -> Tensor:
    return Pretended(torch.empty_strided(size, stride, dtype=dtype, device=_HOST))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    return _copy(target, source, non_blocking)


def _made_on_host(operation: Any) -> Callable[..., Tensor]:
    def run(*args: Any, **options: Any) -> Tensor:
        return Pretended(operation(*args, **{**options, "device": _HOST, "pin_memory": None}))

    return run


for _name in ("arange", "arange.start", "arange.start_step", "eye", "eye.m"):  # these two would resize an empty tensor
    _packet, _, _overload = _name.partition(".")
    _operation = getattr(getattr(torch.ops.aten, _packet), _overload or "default")
    _kernels.impl(_name, _made_on_host(_operation), "PrivateUse1")
_kernels.impl("empty.memory_format", _empty, "PrivateUse1")
_kernels.impl("empty_strided", _empty_strided, "PrivateUse1")
_kernels.impl("_copy_from", _copy_from, "PrivateUse1")  # torch.tensor(numbers, device=DEVICE) comes here


# ---------------------------------------------------------------------------------------------------------------------
# Autocast: matrix products in the lower precision, as torch does it for its own devices.

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_fallthrough = torch.library.Library("_", "IMPL")
_fallthrough.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


def _in_lower_precision(operation: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME)

        def cast(x: Any) -> Any:
            return x.to(dtype) if isinstance(x, Tensor) and x.dtype == torch.float32 else x

        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return operation(*_map(cast, args), **{key: _map(cast, value) for key, value in kwargs.items()})

    return run


for _name in ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "conv1d", "conv2d"):
    _kernels.impl(_name, _in_lower_precision(getattr(torch.ops.aten, _name).default), "AutocastPrivateUse1")
