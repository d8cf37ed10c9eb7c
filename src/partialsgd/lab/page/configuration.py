"""The section of configuration: settings that differ, all settings, versions and data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from partialsgd.lab.page.run_files import Json, Run

DefaultSettings: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""Returns the settings of the preset of a run, given its recipe and its settings; nothing for an unknown recipe."""

_MACHINE_SETTINGS = ("out", "threads")


def section(runs: Sequence[Run], default_settings: DefaultSettings | None) -> dict[str, Any]:
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
