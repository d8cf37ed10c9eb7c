"""A network as an ONNX graph."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from partialsgd.nested import Nested
from partialsgd.nested.example_inputs import Call, Example

Dynamic: TypeAlias = Mapping[str, Mapping[int, str]]
"""For an argument, which dimensions may have any size, and a name for each; those of one name have one size."""

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
    dynamic: Dynamic
    """What is free beside the batch, and must stay so."""


def require_onnx() -> None:
    for name in ("onnx", "onnxscript"):
        if find_spec(name) is None:
            raise ImportError(f"to write ONNX, {name} is needed: pip install partialsgd[export]")


def inputs_for(nested: Nested, level: str, given: Any, dynamic: Dynamic | None = None) -> Inputs:
    """The inputs of a level, from an example, a call before, or the configuration."""
    example = nested.example(given)
    calls = (example.drawn(2, torch.Generator().manual_seed(0)), _free(example), example.call)
    drawn, free, given = (nested.inputs_of(level, call) for call in calls)
    return Inputs(drawn, free, given, dynamic or {})


def write(plain: nn.Module, inputs: Inputs, path: Path) -> None:
    """Trace the network, which is changed for it, and write it."""
    for module in plain.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            setattr(config, "use_cache", False)  # noqa: B010  # a graph cannot hand out a cache of keys and values
    try:
        program = _trace(plain, inputs.drawn, _shapes(plain, inputs))
    except torch.onnx.OnnxExporterError as error:
        program = _with_fixed_batch(plain, inputs, error)
    size = sum(tensor.numel() * tensor.element_size() for tensor in plain.state_dict().values())
    program.save(path, external_data=size > _ONE_FILE)


def _with_fixed_batch(plain: nn.Module, inputs: Inputs, error: Exception) -> Any:
    name = type(plain).__name__
    if inputs.dynamic:
        raise RuntimeError(
            f"torch.onnx cannot trace {name} with the dimensions of dynamic={dict(inputs.dynamic)} free "
            f'({error.__cause__ or error}); leave out those that its code fixes, or use format="safetensors"'
        ) from error
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
        names = _names(plain(*args, **kwargs))
        return torch.onnx.export(
            plain, args, kwargs=kwargs, output_names=names, dynamo=True, dynamic_shapes=shapes, verbose=False
        )


def _names(outputs: Any) -> list[str] | None:
    """Those of the outputs of a Hugging Face model: `logits` rather than `add_844`."""
    named = hasattr(outputs, "keys") and all(isinstance(value, Tensor) for value in outputs.values())
    return list(outputs.keys()) if named else None


def _free(example: Example) -> Call:
    def free(value: Any) -> dict[int, str] | None:
        batched = isinstance(value, Tensor) and value.ndim > 0 and len(value) == example.rows
        return {0: "batch"} if batched else None

    args, kwargs = tree_map(free, example.call)
    return args, kwargs


def _shapes(plain: nn.Module, inputs: Inputs) -> Any:
    """The free dimensions in the places of the arguments; by name, where names are known or needed."""
    args, free = inputs.free
    if not free and not inputs.dynamic:
        return args
    shapes, values = _by_name(plain, inputs.free), _by_name(plain, inputs.drawn)
    for name, dimensions in inputs.dynamic.items():
        if name not in values:
            raise ValueError(f"dynamic: there is no argument {name!r}; there are {', '.join(map(repr, values))}")
        for dimension in dimensions:
            _require_two(name, values[name], dimension)
        shapes[name] = {**(shapes[name] or {}), **dimensions}
    return shapes


def _require_two(name: str, value: Any, dimension: int) -> None:
    shape = tuple(value.shape)
    if not 0 <= dimension < len(shape) or shape[dimension] < 2:
        raise ValueError(
            f"dynamic: dimension {dimension} of {name!r} must be in the example, with a size of at least 2 (torch "
            f"takes 0 and 1 for constants); its shape is {shape}"
        )


def _by_name(plain: nn.Module, call: Call) -> dict[str, Any]:
    args, kwargs = call
    return {**dict(zip(inspect.signature(plain.forward).parameters, args, strict=False)), **kwargs}


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch.onnx says of its own code, and that two inputs share a size, is of no use to the caller."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "# The axis name: .* will not be used", UserWarning)
        try:
            yield
        finally:
            log.setLevel(level)
