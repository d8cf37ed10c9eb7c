"""The section of outputs: samples of each level, and other results that a recipe added to the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from partialsgd.lab.page.formatting import number
from partialsgd.lab.page.run_files import Run

_LONG_TEXT = 32  # records with a longer cell are shown as samples, others as a table


class Sample(NamedTuple):
    """One input with its reference, and the outputs of all levels of all runs for it."""

    inputs: Sequence[tuple[str, str]]
    outputs: list[tuple[str, str]]


class Output(NamedTuple):
    """One result: samples, or a table, list or text by run; if all runs have the same one, it stands under no name."""

    title: str
    samples: Sequence[Sample] = ()
    values_by_run: Sequence[tuple[str, Any]] = ()


def section(runs: Sequence[Run]) -> list[Output]:
    """Return the results of all runs, without the signature of the score, which the section of levels shows."""
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
