"""Sections of the page: the levels, the outputs, and the configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from partialsgd.lab.page.charts import Charts
from partialsgd.lab.page.formatting import number
from partialsgd.lab.page.run_files import Json, Level, Run

DefaultSettings: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""Returns the settings of the preset of a run, given its recipe and its settings; nothing for an unknown recipe."""

_LONG_TEXT = 32  # records with a longer cell are shown as samples, others as a table
_MACHINE_SETTINGS = ("out", "threads")


def levels(runs: Sequence[Run], charts: Charts) -> dict[str, Any]:
    """Return the section of levels: which sizes came out, and how good each of them is."""
    finished = [run for run in runs if run.summary]
    scores = list(dict.fromkeys(str(run.score) for run in finished))
    return {
        "finished": finished,
        "unfinished": [run for run in runs if not run.summary],
        "scores": scores,
        "charts": [chart for score in scores if (chart := charts.sizes(score))],
        "best": _best_of_each_level(finished),
        "signatures": list(dict.fromkeys(run.extras["signature"] for run in finished if "signature" in run.extras)),
        "has_untrained": any(not level.updates for run in finished for level in run.levels),
    }


def _best_of_each_level(finished: Sequence[Run]) -> list[tuple[Run, Level]]:
    """Return, for each score and each name of a level, the trained level with the best score, and its run."""
    best: dict[tuple[str | None, str], tuple[Run, Level]] = {}
    for run in finished:
        for level in run.trained:
            key, score = (run.score, level.name), level.score or 0.0
            if math.isfinite(score) and (key not in best or score > (best[key][1].score or 0.0)):
                best[key] = (run, level)
    return list(best.values())


class Sample(NamedTuple):
    """One input with its reference, and the outputs of all levels of all runs for it."""

    inputs: Sequence[tuple[str, str]]
    outputs: list[tuple[str, str]]


class Output(NamedTuple):
    """One result: samples, or a table, list or text by run; if all runs have the same one, it stands under no name."""

    title: str
    samples: Sequence[Sample] = ()
    values_by_run: Sequence[tuple[str, Any]] = ()


def outputs(runs: Sequence[Run]) -> list[Output]:
    """Return the samples and other results of all runs; the section of levels has the signature of the score."""
    names = dict.fromkeys(name for run in runs for name in run.extras if name != "signature")
    return [_output(name, [run for run in runs if name in run.extras]) for name in names]


def _output(name: str, runs: Sequence[Run]) -> Output:
    title = f"{name[:1].upper()}{name[1:]}"
    values = [run.extras[name] for run in runs]
    if all(_has_long_text(value) for value in values):
        return Output(title, samples=_samples(name, runs))
    shown = [(run.name, _readable(value)) for run, value in zip(runs, values, strict=True)]
    return Output(title, values_by_run=[("", shown[0][1])] if all(value == values[0] for value in values) else shown)


def _readable(value: Any) -> dict[str, Any] | list[str] | str:
    if _is_records(value):
        head = list(dict.fromkeys(key for record in value for key in record))
        return {"head": head, "rows": [[_cell(record.get(key)) for key in head] for record in value]}
    return [_cell(item) for item in value] if isinstance(value, list) else _cell(value)


def _cell(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number(value) if value is None or is_number else str(value)


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(record, Mapping) for record in value)


def _has_long_text(value: Any) -> bool:
    return _is_records(value) and any(len(str(cell)) > _LONG_TEXT for record in value for cell in record.values())


def _samples(name: str, runs: Sequence[Run]) -> list[Sample]:
    samples: dict[tuple[tuple[str, str], ...], Sample] = {}
    for run in runs:
        levels = list(run.summary["levels"])
        for record in run.extras[name]:
            inputs = tuple((str(key), str(cell)) for key, cell in record.items() if key not in levels)
            outputs = [(run.label(run.level_name(key)), str(record[key])) for key in levels if key in record]
            samples.setdefault(inputs, Sample(inputs, [])).outputs.extend(outputs)
    return list(samples.values())


def configuration(runs: Sequence[Run], default_settings: DefaultSettings | None) -> dict[str, Any]:
    """Return the section of configuration: settings that differ, all settings, versions and data."""
    presets = [dict(default_settings(run.config["recipe"], run.settings)) if default_settings else {} for run in runs]
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    changed = [name for name in names if name not in _MACHINE_SETTINGS and _differs(name, runs, presets)]
    has_one_preset = any(presets) and all(preset == presets[0] for preset in presets)
    settings: list[Json] = [run.settings for run in runs]
    versions = [{**run.config.get("versions", {}), "data (sha256)": run.config.get("data") or ""} for run in runs]
    if all(one == versions[0] for one in versions):
        versions = versions[:1]
    return {
        "has_preset": any(presets),
        "has_preset_column": has_one_preset,
        "changed": _table(changed, [*settings, *presets[:has_one_preset]]),
        "settings": _table(names, settings),
        "versions": _table(list(dict.fromkeys(name for one in versions for name in one)), versions),
    }


def _differs(name: str, runs: Sequence[Run], presets: Sequence[Json]) -> bool:
    """Return True if a setting differs from the preset or between the runs that have it."""
    own = [
        (_text(run.settings[name]), preset) for run, preset in zip(runs, presets, strict=True) if name in run.settings
    ]
    is_changed = any(name in preset and _text(preset[name]) != value for value, preset in own)
    return is_changed or len({value for value, _ in own}) > 1


def _table(names: Sequence[str], columns: Sequence[Json]) -> list[list[str]]:
    return [[name, *(_text(column[name]) if name in column else "" for column in columns)] for name in names]


def _text(value: Any) -> str:
    """Write a value as on the command line."""
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)
