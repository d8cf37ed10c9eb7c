"""A network as an ONNX graph."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from partialsgd.nested import Nested
from partialsgd.nested.examples import Call, Example

_ONE_FILE = 1_500_000_000  # bytes; a protobuf holds two gigabytes, beyond which weights lie beside it


@final
@dataclass(frozen=True)
class Inputs:
    """What a network is traced with."""

    drawn: Call
    """Two rows, drawn anew: of one row, the batch would be taken for a constant."""
    free: Call
    """In the places of the arguments, which dimensions may have any size."""
    given: Call
    """The example itself, for a network that fixes the size of its batch."""


def require_onnx() -> None:
    for name in ("onnx", "onnxscript"):
        if find_spec(name) is None:
            raise ImportError(f"to write ONNX, {name} is needed: pip install partialsgd[export]")


def inputs_for(nested: Nested, level: str, given: Any) -> Inputs:
    """The inputs of a level, from an example, a call before, or the configuration."""
    example = nested.example(given)
    calls = (example.drawn(2, torch.Generator().manual_seed(0)), _free(example), example.call)
    return Inputs(*(nested.inputs_of(level, call) for call in calls))


def write(plain: nn.Module, inputs: Inputs, path: Path) -> None:
    """Trace the network, which is changed for it, and write it."""
    for module in plain.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            setattr(config, "use_cache", False)  # noqa: B010  # a graph cannot hand out a cache of keys and values
    try:
        program = _trace(plain, inputs.drawn, _by_name(plain, inputs.free))
    except torch.onnx.OnnxExporterError as error:
        program = _with_fixed_batch(plain, inputs, error)
    size = sum(tensor.numel() * tensor.element_size() for tensor in plain.state_dict().values())
    program.save(path, external_data=size > _ONE_FILE)


def _with_fixed_batch(plain: nn.Module, inputs: Inputs, error: Exception) -> Any:
    name = type(plain).__name__
    try:
        program = _trace(plain, inputs.given, None)
    except torch.onnx.OnnxExporterError as other:
        raise RuntimeError(
            f"torch.onnx cannot trace {name} ({other.__cause__ or other}); "
            'change its code as torch.export asks, or use format="safetensors"'
        ) from other
    warnings.warn(
        f"the graph takes batches of the size of the example alone, for {name} fixes it ({error.__cause__ or error})",
        UserWarning,
        stacklevel=4,
    )
    return program


def _trace(plain: nn.Module, call: Call, shapes: Any) -> Any:
    args, kwargs = call
    with _quiet(), torch.no_grad():
        return torch.onnx.export(plain, args, kwargs=kwargs, dynamo=True, dynamic_shapes=shapes, verbose=False)


def _free(example: Example) -> Call:
    def free(value: Any) -> dict[int, str] | None:
        batched = isinstance(value, Tensor) and value.ndim > 0 and len(value) == example.rows
        return {0: "batch"} if batched else None

    args, kwargs = tree_map(free, example.call)
    return args, kwargs


def _by_name(plain: nn.Module, free: Call) -> Any:
    args, kwargs = free
    return {**dict(zip(inspect.signature(plain.forward).parameters, args, strict=False)), **kwargs} if kwargs else args


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch.onnx says of its own code, and that two inputs share a batch, is of no use to the caller."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "# The axis name: batch will not be used", UserWarning)
        yield
