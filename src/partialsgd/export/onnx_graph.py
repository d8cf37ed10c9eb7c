"""A model as an ONNX graph."""

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

from partialsgd._util.extras import missing
from partialsgd.nested import Nested
from partialsgd.nested.example_inputs import Call, Example

Dynamic: TypeAlias = Mapping[str, Mapping[int, str]]
"""For an argument, its dimensions of any size, with a name for each; dimensions of one name have one size."""

_OF_TEXTS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "decoder_input_ids",
    "decoder_attention_mask",
)
_ONE_FILE = 1_500_000_000  # bytes; a protobuf holds two gigabytes, and larger weights get a file of their own


def require_onnx() -> None:
    for name in ("onnx", "onnxscript"):
        if find_spec(name) is None:
            raise missing(f"to write ONNX, {name} is needed", "export")


@final
@dataclass(frozen=True)
class InputsToTrace:
    """Example inputs of a level with two rows, because torch would take a batch of one for a constant."""

    example: Call
    two_rows: Call
    batch_dimensions: Call

    def text_lengths(self, model: nn.Module) -> Dynamic:
        """Name the lengths of token ids and their masks, which are open unless the caller names dimensions."""
        values = _by_name(model, self.two_rows)
        lengths: dict[str, Mapping[int, str]] = {}
        for name in _OF_TEXTS:
            value = values.get(name)
            if isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] > 1 and not value.is_floating_point():
                lengths[name] = {1: "target_length" if name.startswith("decoder_") else "length"}
        return lengths

    def dynamic_shapes(self, model: nn.Module, dynamic: Dynamic, *, always_by_name: bool = False) -> Any:
        """Return the dimensions of any size, by position, or by name where names are known or needed."""
        args, kwargs = self.batch_dimensions
        if not kwargs and not dynamic and not always_by_name:
            return args
        shapes, values = _by_name(model, self.batch_dimensions), _by_name(model, self.two_rows)
        for name, dimensions in dynamic.items():
            if name not in values:
                raise ValueError(f"dynamic: there is no argument {name!r}; there are {', '.join(map(repr, values))}")
            shape = tuple(values[name].shape)
            for dimension in dimensions:
                if not 0 <= dimension < len(shape) or shape[dimension] < 2:
                    raise ValueError(
                        f"dynamic: dimension {dimension} of {name!r} must be in the example, with a size of at least 2 "
                        f"(torch takes 0 and 1 for constants); its shape is {shape}"
                    )
            shapes[name] = {**(shapes[name] or {}), **dimensions}
        return shapes


def inputs_to_trace(nested: Nested, level: str, model: nn.Module, inputs: Any) -> InputsToTrace:
    """Return the inputs that are given, or those of an earlier call, or some made from the model's config.

    The extracted model's `use_cache` is switched off: a graph cannot return a cache of keys and values.
    """
    example = nested.example(inputs)
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            setattr(config, "use_cache", False)  # noqa: B010  # its class has no annotation of it
    return InputsToTrace(
        nested.inputs_of(level, example.call),
        nested.inputs_of(level, example.drawn(2, torch.Generator().manual_seed(0))),
        nested.inputs_of(level, _batch_dimensions(example)),
    )


def write(nested: Nested, level: str, model: nn.Module, inputs: Any, dynamic: Dynamic | None, path: Path) -> None:
    """Trace the extracted level and write the graph. Without `dynamic`, batch and lengths of texts stay open where the
    model's code allows it."""
    traced, name = inputs_to_trace(nested, level, model, inputs), type(model).__name__
    attempts = [traced.text_lengths(model), {}] if dynamic is None else [dynamic]
    program, failure = None, None
    for attempt in attempts if attempts[0] else attempts[-1:]:
        try:
            program = _trace(model, traced.two_rows, traced.dynamic_shapes(model, attempt))
            break
        except torch.onnx.OnnxExporterError as error:
            failure = error
            if dynamic:
                raise RuntimeError(
                    f"torch.onnx cannot trace {name} with dynamic={dict(dynamic)} ({error.__cause__ or error}); leave "
                    'out the dimensions that its code fixes, or use format="safetensors"'
                ) from error
    if program is None:
        assert failure is not None  # each attempt has failed
        program = _trace_with_fixed_batch(model, traced.example, failure)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    program.save(path, external_data=size > _ONE_FILE)


def _trace_with_fixed_batch(model: nn.Module, example: Call, error: Exception) -> Any:
    name = type(model).__name__
    try:
        program = _trace(model, example, None)
    except torch.onnx.OnnxExporterError as other:
        raise RuntimeError(
            f"torch.onnx cannot trace {name} ({other.__cause__ or other}); "
            'change its code as torch.export asks, or use format="safetensors"'
        ) from other
    warnings.warn(
        f"the graph accepts only batches of the example's size, which {name} fixes ({error.__cause__ or error})",
        UserWarning,
        stacklevel=4,
    )
    return program


def _trace(model: nn.Module, call: Call, shapes: Any) -> Any:
    args, kwargs = call
    with without_warnings(), torch.no_grad():
        outputs: Any = model(*args, **kwargs)
        # The outputs of a Hugging Face model have names: `logits` rather than `add_844`.
        named = hasattr(outputs, "keys") and all(isinstance(value, Tensor) for value in outputs.values())
        names = list(outputs.keys()) if named else None
        return torch.onnx.export(
            model, args, kwargs=kwargs, output_names=names, dynamo=True, dynamic_shapes=shapes, verbose=False
        )


def _batch_dimensions(example: Example) -> Call:
    def dimensions(value: Any) -> dict[int, str] | None:
        has_batch = isinstance(value, Tensor) and value.ndim > 0 and len(value) == example.rows
        return {0: "batch"} if has_batch else None

    args, kwargs = tree_map(dimensions, example.call)
    return args, kwargs


def _by_name(model: nn.Module, call: Call) -> dict[str, Any]:
    args, kwargs = call
    return {**dict(zip(inspect.signature(model.forward).parameters, args, strict=False)), **kwargs}


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence what torch.onnx and torch.export report about its own code, and about two inputs that share a size."""
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
