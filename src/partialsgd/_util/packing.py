"""States as JSON and named tensors, for checkpoints in which nothing is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from torch import Tensor

Json: TypeAlias = Any


def pack(state: Any) -> tuple[Json, dict[str, Tensor]]:
    """Split a state of dicts, lists, tuples, plain values and tensors into JSON and named tensors."""
    tensors: dict[str, Tensor] = {}

    def pack_value(value: Any, path: str) -> Json:
        if isinstance(value, Tensor):
            name = f"{len(tensors)} {path}"  # numbered, because keys contain dots and two paths may be equal
            tensors[name] = value.detach().cpu().contiguous().clone()
            return {"tensor": name}
        if isinstance(value, Mapping):  # as pairs, because JSON keys cannot be the numbers of an optimizer's state
            for key in value:
                if not isinstance(key, (str, int)):
                    raise TypeError(f"{path} has the key {key!r}; a checkpoint holds only str and int keys")
            return {"dict": [[key, pack_value(inner, f"{path}.{key}")] for key, inner in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [pack_value(inner, f"{path}.{k}") for k, inner in enumerate(value)]}
        if isinstance(value, list):
            return [pack_value(inner, f"{path}.{k}") for k, inner in enumerate(value)]
        if isinstance(value, (str, int, float, bool, type(None))):
            return value
        raise TypeError(f"{path} is a {type(value).__name__}, which a checkpoint cannot hold: nothing is pickled")

    return pack_value(state, "state"), tensors


def unpack(structure: Json, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild the state that `pack` took apart, with the same types."""
    if isinstance(structure, list):
        return [unpack(inner, tensors) for inner in structure]
    if not isinstance(structure, dict):
        return structure
    ((kind, content),) = structure.items()
    if kind == "tensor":
        return tensors[content].clone()  # aligned in memory, as in the run that saved it: vectorised sums depend on it
    if kind == "tuple":
        return tuple(unpack(inner, tensors) for inner in content)
    return {key: unpack(inner, tensors) for key, inner in content}
