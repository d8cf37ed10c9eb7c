"""c_norm, c_sim, c_align over t: what the records of a run hold of one quantity."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from partialsgd.logging.records import Record, name_of, read

Run: TypeAlias = str | os.PathLike[str] | Sequence[Record]
"""A metrics file, or its records."""
Runs: TypeAlias = Mapping[str, Run | Sequence[Run]]
"""Runs by label; several under one label are seeds of it."""
Measured: TypeAlias = Mapping[int, Mapping[str, Any]]
"""The numbers of a measurement by step."""


@final
@dataclass(frozen=True)
class Series:
    """Numbers over t. Those that an axis cannot show are counted: none is left out without a word."""

    values: Mapping[int, float]
    """By step, in order; NaN where there is nothing to draw."""
    negative: tuple[int, ...] = ()
    """The steps at which a ratio was negative, which lies beyond every bound."""
    infinite: tuple[int, ...] = ()
    undefined: tuple[int, ...] = ()
    """The steps of 0 / 0."""

    def smoothed(self, window: int) -> Series:
        """The running median of the measurements around each; one that is negative or infinite counts as very large."""
        large = {**self.values, **dict.fromkeys(self.negative + self.infinite, math.inf)}
        known = [(t, value) for t, value in sorted(large.items()) if not math.isnan(value)]
        before, after = (window - 1) // 2, window // 2 + 1
        values = {
            t: statistics.median([value for _, value in known[max(0, k - before) : k + after]])
            for k, (t, _) in enumerate(known)
        }
        return Series({t: value if math.isfinite(value) else math.nan for t, value in values.items()})


def load(runs: Runs) -> dict[str, list[list[Record]]]:
    """The steps of each run by label: of a step that was tried again the last attempt, if it moved."""
    if not isinstance(runs, Mapping) or not runs:
        raise ValueError(f"runs must be a mapping with a label for each run, as {{'dropout': path}}; got {runs!r}")
    found = {label: [steps_of(seed) for seed in _seeds(run)] for label, run in runs.items()}
    for label, seeds in found.items():
        if not seeds or not all(seeds):
            raise ValueError(f"run {label!r} has no steps: MetricsLog.write(step) adds one")
    return found


def measured(steps: Iterable[Record], name: str, group: str | None = None) -> Measured:
    """What was measured of a probe or level, or of a group of its layers, by step."""
    found = {step["t"]: one for step in steps for one in step.get("criteria", ()) if name_of(one) == name}
    if group is None:
        return found
    for one in found.values():
        if group not in one.get("groups", {}):
            raise ValueError(f"there is no group {group!r}; there are {', '.join(one.get('groups', {})) or 'none'}")
    return {t: one["groups"][group] for t, one in found.items()}


def names(steps: Iterable[Record]) -> list[str]:
    """The probes and levels that were measured, the one to look at first.

    A probe, for it was asked for; else the level that is farthest from plain training, of which all criteria are 1.
    """
    found: dict[tuple[bool, str], list[float]] = {}
    for step in steps:
        for one in step.get("criteria", ()):
            key = (one.get("probe") is None, name_of(one))
            found.setdefault(key, []).append(_excess(one["c_norm"]) + _excess(one["c_align"]))
    return [name for _, name in sorted(found, key=lambda key: (key[0], -statistics.median(found[key])))]


def ratio(found: Measured, key: str, *, squared: bool = False, signed: bool = False) -> Series:
    """One number of each measurement; unless it is signed, what is not positive and finite is set apart."""
    plain = {t: float(one[key]) for t, one in found.items()}
    numbers = {t: math.copysign(number * number, number) if squared else number for t, number in plain.items()}
    is_drawn = {t: math.isfinite(number) and (signed or number >= 0) for t, number in numbers.items()}
    return Series(
        {t: number if is_drawn[t] else math.nan for t, number in numbers.items()},
        negative=tuple(t for t, number in numbers.items() if number < 0 and not signed),
        infinite=tuple(t for t, number in numbers.items() if math.isinf(number) and (signed or number > 0)),
        undefined=tuple(t for t, number in numbers.items() if math.isnan(number)),
    )


def steps_of(run: Run) -> list[Record]:
    """Of a step that was tried again the last attempt; none that moved nothing."""
    found = read(run) if isinstance(run, (str, os.PathLike)) else run
    last = {record["t"]: record for record in found}
    return [last[t] for t in sorted(last) if "skipped" not in last[t]]


def _seeds(run: Run | Sequence[Run]) -> Sequence[Run]:
    is_one = isinstance(run, (str, os.PathLike)) or all(isinstance(record, Mapping) for record in run)
    return [run] if is_one else run  # type: ignore[list-item, return-value]  # mypy does not follow the test


def _excess(number: float) -> float:
    """For an order: a negative ratio is beyond an infinite one, and 0 / 0 tells nothing."""
    return 0.0 if math.isnan(number) else number - 1 if number >= 0 else math.inf
