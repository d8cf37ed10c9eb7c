"""`save` and `load`: a whole nested model in one checkpoint, with all levels and each weight once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from torch import nn

from partialsgd._util.tensor_files import Record
from partialsgd.export import files, hugging_face, spec_json, states
from partialsgd.nested import Nested, nest
from partialsgd.nested.extract.level import extract_level
from partialsgd.nested.layers.batch_norm import never_updated_is_fine
from partialsgd.nested.layers.separate import SeparateLevels
from partialsgd.nested.nested import Metrics, unwrap_nested
from partialsgd.nested.specs import Levels, Spec, resolve_levels


def save(nested: nn.Module, directory: str | PathLike[str], *, metrics: Metrics | None = None) -> None:
    """Write the nested model to `model.safetensors` and `config.json`, replacing an earlier `save` there.

    `metrics` are numbers for each level, which config.json then shows. A kill at any moment leaves the old checkpoint
    or the new one. Nothing is pickled; the optimizer is not saved.
    """
    nested, path = unwrap_nested(nested), Path(directory)
    if (path / files.WEIGHTS).exists() and not files.is_nested_model(path):
        raise ValueError(f"{path / files.WEIGHTS} holds another model and would be lost; save to another directory")
    is_separate = isinstance(nested.model, SeparateLevels)
    whole = nested.model.network(nested.levels[-1]) if isinstance(nested.model, SeparateLevels) else nested.model
    record = {
        "versions": hugging_face.versions(whole),
        "model": hugging_face.describe(whole),
        "levels": list(nested.levels),
        "specs": spec_json.levels_as_json(nested.specs),
        "norms": nested.norms,
        "separate": is_separate,
        "metrics": _checked_metrics(metrics or {}, nested.levels),
        "state": states.describe(nested.model),
    }
    files.write(path, record, states.stored(nested.model))


def load(
    directory: str | PathLike[str],
    model: nn.Module | None = None,
    *,
    spec: Spec | Sequence[Spec] | None = None,
    levels: Mapping[str, Spec | Sequence[Spec]] | None = None,
) -> Nested:
    """Return the nested model that `save` wrote: weights, levels and specs.

    A Hugging Face model is built from its config; give any other one freshly built and not nested: it becomes the
    nested model. `spec` or `levels`, as given to `nest`, are needed for a LayerSum only, whose `make` is a function.
    """
    record, tensors = files.read(Path(directory))
    specs = _specs(record, spec, levels)
    if model is None:
        model = hugging_face.rebuild(record["model"], states.with_ties(tensors, record["state"]))
        states.tie(model, record["state"]["tied"])
    nested = _nest(model, specs, record)
    nested.specs = specs
    nested = as_saved(nested, record)
    states.fill(nested.model, record["state"], tensors)
    return nested


def as_saved(nested: Nested, record: Record) -> Nested:
    """Return the nested model, or one whose levels share nothing, if such a one was saved."""
    if not record.get("separate") or isinstance(nested.model, SeparateLevels):
        return nested
    networks = []
    for level in nested.levels:
        with nested.at(level), never_updated_is_fine():  # they are loaded
            networks.append(extract_level(nested.model, level, {}))
    return nested.with_separate(networks)


def restore(nested: Nested, directory: str | PathLike[str]) -> None:
    """Load the weights that `save` wrote into a nested model that exists already, and was nested in the same way."""
    record, tensors = files.read(Path(directory))
    if record["levels"] != list(nested.levels) or not spec_json.are_same(record["specs"], nested.specs):
        raise states.other_model(f"its levels are {record['levels']} with the specs {record['specs']}")
    states.fill(nested.model, record["state"], tensors)


def _nest(model: nn.Module, specs: Levels, record: Record) -> Nested:
    """Nest the model without the initial weights, which are overwritten."""
    levels = {level: tuple(map(spec_json.without_init, level_specs)) for level, level_specs in specs.items()}
    try:
        if levels and not any(levels.values()):  # the levels come from an OutputSum in the model
            return nest(model, norms=record["norms"])
        return nest(model, levels=levels, norms=record["norms"])
    except ValueError as error:
        class_name = f"{type(model).__module__}.{type(model).__qualname__}"
        saved = record["model"]["class"]
        raise states.other_model(f"{saved} was saved, {class_name} was given, and {error}") from error


def _specs(
    record: Record,
    spec: Spec | Sequence[Spec] | None,
    levels: Mapping[str, Spec | Sequence[Spec]] | None,
) -> Levels:
    saved = record["specs"]
    if spec is None and levels is None:
        for level, level_specs in saved.items():
            if any(map(spec_json.needs_function, level_specs)):
                raise ValueError(
                    f"the level {level!r} has a LayerSum, whose `make` is a function and is not in the file: "
                    "load(directory, model, spec=…), or levels=…, as it was given to nest"
                )
        return spec_json.levels_from_json(saved)
    specs = resolve_levels(spec, levels)
    if list(specs) != list(saved):
        raise ValueError(f"the specs given make the levels {list(specs)}, the checkpoint has {list(saved)}")
    for level, level_specs in specs.items():
        if len(level_specs) != len(saved[level]) or not all(map(spec_json.is_same, saved[level], level_specs)):
            raise ValueError(f"the level {level!r} was saved with {saved[level]}, and {list(level_specs)} was given")
    return specs


def _checked_metrics(metrics: Metrics, levels: Sequence[str]) -> dict[str, dict[str, float | str]]:
    for level in metrics:
        if level not in levels:
            raise ValueError(f"metrics: there is no level {level!r}; there are {', '.join(map(repr, levels))}")
    return {
        level: {name: _as_number(f"metrics[{level!r}][{name!r}]", value) for name, value in numbers.items()}
        for level, numbers in metrics.items()
    }


def _as_number(name: str, value: object) -> float | str:
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return number if math.isfinite(number) else str(number)  # JSON has no NaN, and such a run is saved all the same
