"""A tree of states as JSON and tensors: what optimizers, methods and generators remember, without pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor

Json: TypeAlias = Any

_PLAIN = (str, int, float, bool, type(None))


def pack(state: Any) -> tuple[Json, dict[str, Tensor]]:
    """JSON with a reference in the place of each tensor, and the tensors by their reference."""
    tensors: dict[str, Tensor] = {}

    def packed(value: Any, path: str) -> Json:
        if isinstance(value, Tensor):
            name = f"{len(tensors)} {path}"  # the path alone may be another's too: keys have dots in them
            tensors[name] = value.detach().cpu().contiguous().clone()
            return {"tensor": name}
        if isinstance(value, Mapping):  # keys of an optimizer's state are numbers, which JSON does not have as keys
            return {"dict": [[key, packed(inner, f"{path}.{key}")] for key, inner in _items(value, path)]}
        if isinstance(value, tuple):
            return {"tuple": [packed(inner, f"{path}.{k}") for k, inner in enumerate(value)]}
        if isinstance(value, list):
            return [packed(inner, f"{path}.{k}") for k, inner in enumerate(value)]
        if isinstance(value, _PLAIN):
            return value
        raise TypeError(f"{path} is a {type(value).__name__}, which a checkpoint does not hold: nothing is pickled")

    return packed(state, "state"), tensors


def unpack(said: Json, tensors: Mapping[str, Tensor]) -> Any:
    """What was packed, with the same types."""
    if isinstance(said, list):
        return [unpack(inner, tensors) for inner in said]
    if not isinstance(said, dict):
        return said
    ((kind, inside),) = said.items()
    if kind == "tensor":
        return tensors[inside].clone()  # in a file it may lie at any byte, and there some processors add otherwise
    if kind == "tuple":
        return tuple(unpack(inner, tensors) for inner in inside)
    return {key: unpack(inner, tensors) for key, inner in inside}


def _items(value: Mapping[Any, Any], path: str) -> Iterator[tuple[Any, Any]]:
    for key, inner in value.items():
        if not isinstance(key, (str, int)):
            raise TypeError(f"{path} has the key {key!r}, which a checkpoint does not hold: nothing is pickled")
        yield key, inner
