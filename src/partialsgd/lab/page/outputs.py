"""What the levels say: samples side by side, and whatever else a recipe wrote at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from partialsgd.lab.page import numbers
from partialsgd.lab.page.curves import name_of
from partialsgd.lab.page.markup import Html, el, folded, listed, section, table
from partialsgd.lab.page.runs import Run

Record: TypeAlias = Mapping[str, Any]

_ELSEWHERE = ("signature",)  # stands below the table of levels
_LONG = 32  # letters from which a cell is read as a text
_EMPTY = "(nothing)"
_OPEN = 6  # samples that are shown at once


def shown(runs: Sequence[Run]) -> Html:
    names = dict.fromkeys(name for run in runs for name in run.extras if name not in _ELSEWHERE)
    parts = [part for name in names for part in _extra(name, [run for run in runs if name in run.extras], runs)]
    nothing = el("p", "There are sample outputs when a run is at its end.")
    return section("outputs", "Outputs", *(parts or [nothing]))


def _extra(name: str, own: Sequence[Run], runs: Sequence[Run]) -> list[Html]:
    title = el("h3", name[:1].upper() + name[1:])
    values = [run.extras[name] for run in own]
    if all(_is_text(value) for value in values):
        return [title, *_samples(own, name, runs)]
    if all(value == values[0] for value in values):
        return [title, _value(values[0], name)]
    shown = [(el("h4", run.name), _value(value, f"{name}, {run.name}")) for run, value in zip(own, values, strict=True)]
    return [title, *(part for pair in shown for part in pair)]


def _value(value: Any, name: str) -> Html:
    """Records are a table, a list is one, and the rest is text."""
    if _is_records(value):
        head = list(dict.fromkeys(key for record in value for key in record))
        rows = ([_cell(record.get(key)) for key in head] for record in value)
        return table([str(key) for key in head], rows, title=name)
    if isinstance(value, (list, tuple)):
        return listed(_cell(item) for item in value)
    return el("p", _cell(value))


def _cell(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return numbers.NOTHING if value is None else numbers.plain(value) if is_number else str(value)


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(record, Mapping) for record in value)


def _is_text(value: Any) -> bool:
    return _is_records(value) and any(len(str(cell)) > _LONG for record in value for cell in record.values())


def _samples(own: Sequence[Run], name: str, runs: Sequence[Run]) -> list[Html]:
    """What all levels were given, a source and a reference, once, and below it what each level of each run says."""
    found: dict[tuple[tuple[str, str], ...], list[tuple[str, str]]] = {}
    for run in own:
        names = {key: run.called(key) for key in (run.summary or {}).get("levels", {})}
        for record in run.extras[name]:
            given = tuple((str(key), str(cell)) for key, cell in record.items() if key not in names)
            said = [(name_of(run, names[key], runs), str(record[key]) or _EMPTY) for key in names if key in record]
            found.setdefault(given, []).extend(said)
    samples = [_sample(given, said) for given, said in found.items()]
    rest = samples[_OPEN:]
    return [*samples[:_OPEN], *([folded(f"{len(rest)} more", *rest)] if rest else [])]


def _sample(given: Sequence[tuple[str, str]], said: Sequence[tuple[str, str]]) -> Html:
    rows = [(key, cell, "given") for key, cell in given] + [(key, cell, "said") for key, cell in said]
    parts = (part for key, cell, kind in rows for part in (el("dt", key), el("dd", cell, class_=kind)))
    return el("dl", *parts, class_="sample")
