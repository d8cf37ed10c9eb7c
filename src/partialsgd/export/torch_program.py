"""A model as a program of torch.export (.pt2), which torch loads without the model's code."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_map

from partialsgd.export import onnx_graph
from partialsgd.export.onnx_graph import Dynamic
from partialsgd.nested import Nested
from partialsgd.nested.example_inputs import Call


def write(nested: Nested, level: str, model: nn.Module, inputs: Any, dynamic: Dynamic | None, path: Path) -> None:
    """Trace the extracted level, whose `use_cache` is switched off for it, and write the program.

    The dimensions that `dynamic` names must stay open; the batch, and the lengths of texts, stay open where the code
    allows it.
    """
    traced = onnx_graph.inputs_to_trace(nested, level, model, inputs)
    (args, kwargs), name = traced.two_rows, type(model).__name__
    wanted = traced.text_lengths(model) if dynamic is None else dynamic
    by_name = traced.dynamic_shapes(model, wanted, always_by_name=True)
    kind = Dim.AUTO if dynamic is None else Dim.DYNAMIC  # DYNAMIC is an error where the code fixes a size
    shapes = {argument: _open(sizes, dynamic, argument, kind) for argument, sizes in by_name.items()}
    try:
        with onnx_graph.without_warnings(), torch.no_grad():
            program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch.export raises errors of many kinds
        raise RuntimeError(
            f"torch.export cannot trace {name} ({error}); change its code as torch.export asks, leave out dimensions "
            'that its code fixes, or use format="safetensors"'
        ) from error
    if not _is_open(program, traced.two_rows, by_name):
        message = f"the program accepts only batches of {_rows(traced.two_rows)} examples, which {name} fixes"
        warnings.warn(message, UserWarning, stacklevel=4)
    torch.export.save(program, path)


def _open(sizes: Any, dynamic: Dynamic | None, argument: str, kind: Any) -> Any:
    """Turn names of dimensions into what torch.export takes; only named dimensions must stay open."""
    asked = () if dynamic is None else dynamic.get(argument, ())

    def hint(dimensions: dict[int, str] | None) -> dict[int, Any] | None:
        return None if dimensions is None else {k: kind if k in asked else Dim.AUTO for k in dimensions}

    return tree_map(hint, sizes, is_leaf=lambda value: value is None or (isinstance(value, dict) and 0 in value))


def _is_open(program: Any, call: Call, shapes: dict[str, Any]) -> bool:
    """True if the batch dimension of the inputs is a symbol in the program."""
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    users = inputs[-len(program.graph_signature.user_inputs) :]
    tensors = [value for value in users if isinstance(value, Tensor) and value.ndim > 0]
    if not any(sizes is not None for sizes in shapes.values()):
        return True
    sizes = [value.shape[0] for value in tensors]
    return any(isinstance(size, torch.SymInt) and bool(size.node.expr.free_symbols) for size in sizes)


def _rows(call: Call) -> int:
    args, kwargs = call
    return len(next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and value.ndim > 0))
