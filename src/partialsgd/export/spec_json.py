"""Specs as JSON: the name of the class and its fields."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from partialsgd.nested.specs import Depth, LayerSum, Levels, LowRank, Spec, Width

Json: TypeAlias = dict[str, Any]

_CLASSES: dict[str, Callable[..., Spec]] = {spec.__name__: spec for spec in (LowRank, Width, Depth)}


def levels_as_json(levels: Levels) -> dict[str, list[Json]]:
    return {level: [_as_json(spec) for spec in specs] for level, specs in levels.items()}


def levels_from_json(levels: Mapping[str, Sequence[Json]]) -> Levels:
    """Return the specs of each level, with tuples in the place of lists."""
    return {level: tuple(_from_json(spec) for spec in specs) for level, specs in levels.items()}


def needs_function(spec: Json) -> bool:
    """True for a LayerSum, whose `make` is a function that the file does not hold."""
    return spec["kind"] not in _CLASSES


def is_same(saved: Json, spec: Spec) -> bool:
    """True if the spec is the one in the file; functions are not compared."""
    if not needs_function(saved):  # fields that are younger than the file have their defaults
        saved = _as_json(_from_json(saved))
    return {**saved, "make": None} == {**_as_json(spec), "make": None}


def are_same(saved: Mapping[str, Sequence[Json]], levels: Levels) -> bool:
    """True if the specs of every level are those in the file."""
    return list(saved) == list(levels) and all(
        len(specs) == len(levels[level]) and all(map(is_same, specs, levels[level])) for level, specs in saved.items()
    )


def without_init(spec: Spec) -> Spec:
    """Return the spec for weights that are overwritten: without an SVD and without ordering units."""
    if isinstance(spec, LowRank):
        return dataclasses.replace(spec, init="zero")
    return dataclasses.replace(spec, order="first") if isinstance(spec, Width) else spec


def _as_json(spec: Spec) -> Json:
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    if isinstance(spec, LayerSum):  # only the name of the function
        fields["make"] = getattr(spec.make, "__qualname__", type(spec.make).__name__)
    plain: Json = json.loads(json.dumps({"kind": type(spec).__name__, **fields}, default=_as_plain))
    return plain


def _from_json(spec: Json) -> Spec:
    if needs_function(spec):
        raise ValueError(f"a {spec['kind']} cannot be read from a file")
    return _CLASSES[spec["kind"]](**{name: _with_tuples(value) for name, value in spec.items() if name != "kind"})


def _as_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a spec must have numbers, texts, sequences and mappings only, got {value!r}")


def _with_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_with_tuples(inner) for inner in value)
    return {name: _with_tuples(inner) for name, inner in value.items()} if isinstance(value, dict) else value
