"""What a run was told, and by which versions it was made: what differs first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from partialsgd.lab.page.markup import Html, el, folded, section, table
from partialsgd.lab.page.runs import Run

Usual: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
"""(recipe, settings) → the settings that the recipe, or the preset among the settings, has by itself."""

_OF_THE_PLACE = ("out", "threads")  # of the machine, not of the training
_PRESET = "preset's"


def shown(runs: Sequence[Run], usual: Usual | None) -> Html:
    names = list(dict.fromkeys(name for run in runs for name in run.settings))
    base = [dict(usual(run.recipe, run.settings)) if usual else {} for run in runs]
    changed = [name for name in names if name not in _OF_THE_PLACE and _differs(name, runs, base)]
    return section(
        "configuration",
        "Configuration",
        *_changed(changed, runs, base),
        folded("All settings", _settings(names, runs, [], "All settings")),
        folded("Versions and data", _versions(runs)),
    )


def _changed(changed: Sequence[str], runs: Sequence[Run], base: Sequence[Mapping[str, Any]]) -> list[Html]:
    is_preset = any(base)
    if not changed:
        return [el("p", "All settings are those of the preset.")] if is_preset else []
    of_preset = "from the preset" if is_preset else ""
    of_others = "between the runs" if len(runs) > 1 else ""
    title = f"Settings that differ {' or '.join(filter(None, (of_preset, of_others)))}"
    columns = base if is_preset and all(one == base[0] for one in base) else []
    return [el("h3", title), _settings(changed, runs, columns[:1], title)]


def _differs(name: str, runs: Sequence[Run], base: Sequence[Mapping[str, Any]]) -> bool:
    """Other recipes may not have the setting."""
    own = [(_written(run.settings[name]), one) for run, one in zip(runs, base, strict=True) if name in run.settings]
    is_unusual = any(name in one and _written(one[name]) != value for value, one in own)
    return is_unusual or any(value != own[0][0] for value, _ in own)


def _settings(names: Sequence[str], runs: Sequence[Run], base: Sequence[Mapping[str, Any]], title: str) -> Html:
    own = [run.name for run in runs] if len(runs) > 1 else ["this run"]
    head = ["setting", *own, *(_PRESET for _ in base)]
    rows = (
        [
            name,
            *(_written(run.settings[name]) if name in run.settings else "" for run in runs),
            *(_written(one[name]) if name in one else "" for one in base),
        ]
        for name in names
    )
    return table(head, rows, title=title, words=len(head))


def _written(value: Any) -> str:
    """As the command line has it."""
    if value is None:
        return "none"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)


def _versions(runs: Sequence[Run]) -> Html:
    said = [{**dict(run.config.get("versions") or {}), "data (sha256)": run.config.get("data") or ""} for run in runs]
    if all(one == said[0] for one in said):
        said = said[:1]
    names = list(dict.fromkeys(name for one in said for name in one))
    head = ["", *([run.name for run in runs] if len(said) > 1 else ["version"])]
    rows = ([name, *(str(one.get(name, "")) for one in said)] for name in names)
    return table(head, rows, title="Versions", words=len(head))
