"""A whole family in one checkpoint: every level, its specs, and each weight once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from torch import nn

from partialsgd.export import files, models, specs_json, states
from partialsgd.export.files import Record
from partialsgd.nested import Nested, nest
from partialsgd.nested.nested import family_of
from partialsgd.nested.specs import Levels, Spec, resolve_levels

Metrics: TypeAlias = Mapping[str, Mapping[str, float]]


def save(nested: nn.Module, directory: str | PathLike[str], *, metrics: Metrics | None = None) -> None:
    """Write the family to `model.safetensors` and `config.json`, in the place of what `save` wrote there before.

    `metrics` are numbers for each level, to be read in config.json. A kill at any moment leaves the old checkpoint
    or the new one. Nothing is pickled; the optimizer is yours to save.
    """
    family, place = family_of(nested), Path(directory)
    if (place / files.WEIGHTS).exists() and not files.is_nested_model(place):
        raise ValueError(f"{place / files.WEIGHTS} is of another model and would be lost; save to another directory")
    record = {
        "versions": models.versions(family.model),
        "model": models.describe(family.model),
        "levels": list(family.levels),
        "specs": specs_json.levels_as_json(family.specs),
        "norms": family.norms,
        "metrics": _numbers(metrics or {}, family.levels),
        "state": states.describe(family.model),
    }
    files.write(place, record, states.stored(family.model))


def load(
    directory: str | PathLike[str],
    model: nn.Module | None = None,
    *,
    spec: Spec | Sequence[Spec] | None = None,
    levels: Mapping[str, Spec | Sequence[Spec]] | None = None,
) -> Nested:
    """The family that `save` wrote: weights, levels and specs.

    Hugging Face models are built from their configuration; any other is given freshly built, not nested, and is
    taken over as `nest` does. `spec` or `levels`, as they were given to `nest`, are needed for a LayerSum alone,
    whose `make` is a function.
    """
    record, tensors = files.read(Path(directory))
    specs = _specs(record, spec, levels)
    if model is None:
        model = models.rebuild(record["model"])
        states.tie(model, record["state"]["tied"])
    nested = _nested(model, specs, record)
    states.fill(nested.model, record["state"], tensors)
    nested.specs = specs
    return nested


def _nested(model: nn.Module, specs: Levels, record: Record) -> Nested:
    """The structure alone: what a start would compute is overwritten."""
    cheap = {level: tuple(map(specs_json.without_start, each)) for level, each in specs.items()}
    try:
        if cheap and not any(cheap.values()):  # an OutputSum in the model makes the levels
            return nest(model, norms=record["norms"])
        return nest(model, levels=cheap, norms=record["norms"])
    except ValueError as error:
        given = f"{type(model).__module__}.{type(model).__qualname__}"
        raise states.other_model(f"{record['model']['class']} was saved, {given} was given, and {error}") from error


def _specs(
    record: Record,
    spec: Spec | Sequence[Spec] | None,
    levels: Mapping[str, Spec | Sequence[Spec]] | None,
) -> Levels:
    said = record["specs"]
    if spec is None and levels is None:
        with_code = [level for level, each in said.items() if any(map(specs_json.has_code, each))]
        if with_code:
            raise ValueError(
                f"the level {with_code[0]!r} has a LayerSum, whose `make` is a function and is not in the file: "
                "load(directory, model, spec=…), or levels=…, as it was given to nest"
            )
        return specs_json.levels_from_json(said)
    given = resolve_levels(spec, levels)
    if list(given) != list(said):
        raise ValueError(f"the specs given make the levels {list(given)}, the checkpoint has {list(said)}")
    for level, each in given.items():
        if len(each) != len(said[level]) or not all(map(specs_json.are_same, said[level], each)):
            raise ValueError(f"the level {level!r} was saved with {said[level]}, and {list(each)} was given")
    return given


def _numbers(metrics: Metrics, levels: Sequence[str]) -> dict[str, dict[str, float | str]]:
    for level in metrics:
        if level not in levels:
            raise ValueError(f"metrics: there is no level {level!r}; there are {', '.join(map(repr, levels))}")
    return {
        level: {name: _number(f"metrics[{level!r}][{name!r}]", value) for name, value in each.items()}
        for level, each in metrics.items()
    }


def _number(name: str, value: object) -> float | str:
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return number if math.isfinite(number) else str(number)  # JSON has no NaN, and a run is saved in spite of one
