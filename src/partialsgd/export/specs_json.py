"""Specs as JSON: a kind and its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from partialsgd.nested.specs import Depth, LayerSum, Levels, LowRank, Spec, Width

Json: TypeAlias = dict[str, Any]

_KINDS: dict[str, Callable[..., Spec]] = {kind.__name__: kind for kind in (LowRank, Width, Depth)}


def levels_as_json(levels: Levels) -> dict[str, list[Json]]:
    return {level: [as_json(spec) for spec in specs] for level, specs in levels.items()}


def levels_from_json(said: Mapping[str, Sequence[Json]]) -> Levels:
    """The specs again, their lists as tuples."""
    return {level: tuple(from_json(one) for one in specs) for level, specs in said.items()}


def as_json(spec: Spec) -> Json:
    """Of a LayerSum the function is only named: JSON holds no code."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    if isinstance(spec, LayerSum):
        fields["make"] = getattr(spec.make, "__qualname__", type(spec.make).__name__)
    return {"kind": type(spec).__name__, **_plain(fields)}


def from_json(said: Json) -> Spec:
    fields = {name: _frozen(value) for name, value in said.items() if name != "kind"}
    if said["kind"] not in _KINDS:
        raise ValueError(f"a {said['kind']} cannot be read from a file")
    return _KINDS[said["kind"]](**fields)


def has_code(said: Json) -> bool:
    """Whether the spec needs a function that the file does not hold."""
    return said["kind"] not in _KINDS


def are_same(said: Json, spec: Spec) -> bool:
    """Whether the spec is the one in the file; functions are not compared."""
    return _without_make(said) == _without_make(as_json(spec))


def without_start(spec: Spec) -> Spec:
    """The spec for weights that are overwritten: no SVD, no order of importance."""
    if isinstance(spec, LowRank):
        return dataclasses.replace(spec, init="zero")
    return dataclasses.replace(spec, order="first") if isinstance(spec, Width) else spec


def _without_make(said: Json) -> Json:
    return {name: value for name, value in said.items() if name != "make"}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(inner) for inner in value)
    return {name: _frozen(inner) for name, inner in value.items()} if isinstance(value, dict) else value
