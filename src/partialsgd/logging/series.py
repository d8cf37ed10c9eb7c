"""One quantity over the steps of a run, read from its records."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from partialsgd.logging.metrics_log import AnyPath, Record, name_of, read

Run: TypeAlias = AnyPath | Sequence[Record]  # a metrics file, or its records
Runs: TypeAlias = Mapping[str, Run | Sequence[Run]]  # by label; several runs under one label are seeds
Measured: TypeAlias = Mapping[int, Mapping[str, Any]]  # measurements by step


@final
@dataclass(frozen=True)
class Series:
    """Numbers over t, with the steps whose number an axis cannot show, so that none is dropped silently."""

    values: Mapping[int, float]
    """By step, in order; nan if there is nothing to draw."""
    negative: tuple[int, ...] = ()
    """The steps with a negative ratio, which is beyond every bound."""
    infinite: tuple[int, ...] = ()
    undefined: tuple[int, ...] = ()
    """The steps of 0 / 0."""

    def smoothed(self, window: int) -> Series:
        """Return the running median over `window` measurements; a negative or infinite one counts as very large."""
        large = {**self.values, **dict.fromkeys(self.negative + self.infinite, math.inf)}
        defined = [(t, value) for t, value in sorted(large.items()) if not math.isnan(value)]
        before, after = (window - 1) // 2, window // 2 + 1
        values = {
            t: statistics.median([value for _, value in defined[max(0, k - before) : k + after]])
            for k, (t, _) in enumerate(defined)
        }
        return Series({t: value if math.isfinite(value) else math.nan for t, value in values.items()})


def load(runs: Runs) -> dict[str, list[list[Record]]]:
    """Return the records of each run by label, as `steps_of` gives them."""
    if not isinstance(runs, Mapping) or not runs:
        raise ValueError(f"runs must map a label to each run, like {{'dropout': path}}; got {runs!r}")
    steps = {label: [steps_of(seed) for seed in _seeds(run)] for label, run in runs.items()}
    for label, seeds in steps.items():
        if not seeds or not all(seeds):
            raise ValueError(f"run {label!r} has no steps: MetricsLog.write(step) adds one")
    return steps


def measured(steps: Iterable[Record], name: str, group: str | None = None) -> Measured:
    """Return the measurements of a probe or level, or of a group of its layers, by step."""
    by_step = {step["t"]: one for step in steps for one in step.get("criteria", ()) if name_of(one) == name}
    if group is None:
        return by_step
    for one in by_step.values():
        if group not in one.get("groups", {}):
            raise ValueError(f"there is no group {group!r}; there are {', '.join(one.get('groups', {})) or 'none'}")
    return {t: one["groups"][group] for t, one in by_step.items()}


def names(steps: Iterable[Record]) -> list[str]:
    """Return the names of the measured probes and levels, the most interesting one first.

    That is a probe if there is one, or else the level farthest from plain training, whose criteria are all 1.
    """
    excess: dict[tuple[bool, str], list[float]] = {}
    for step in steps:
        for one in step.get("criteria", ()):
            key = (one.get("probe") is None, name_of(one))
            excess.setdefault(key, []).append(_excess(one["c_norm"]) + _excess(one["c_align"]))
    return [name for _, name in sorted(excess, key=lambda key: (key[0], -statistics.median(excess[key])))]


def ratio(measurements: Measured, key: str, *, squared: bool = False, signed: bool = False) -> Series:
    """Return one number of each measurement; unless `signed`, negative and nonfinite numbers are set aside."""
    plain = {t: float(one[key]) for t, one in measurements.items()}
    numbers = {t: math.copysign(number * number, number) if squared else number for t, number in plain.items()}
    is_drawn = {t: math.isfinite(number) and (signed or number >= 0) for t, number in numbers.items()}
    return Series(
        {t: number if is_drawn[t] else math.nan for t, number in numbers.items()},
        negative=tuple(t for t, number in numbers.items() if number < 0 and not signed),
        infinite=tuple(t for t, number in numbers.items() if math.isinf(number) and (signed or number > 0)),
        undefined=tuple(t for t, number in numbers.items() if math.isnan(number)),
    )


def steps_of(run: Run) -> list[Record]:
    """Return the record of each step: the last attempt, unless it was skipped."""
    records = read(run) if isinstance(run, (str, os.PathLike)) else run
    last = {record["t"]: record for record in records}
    return [last[t] for t in sorted(last) if "skipped" not in last[t]]


def _seeds(run: Run | Sequence[Run]) -> Sequence[Run]:
    is_one = isinstance(run, (str, os.PathLike)) or all(isinstance(record, Mapping) for record in run)
    return [run] if is_one else run  # type: ignore[list-item, return-value]  # mypy does not follow the test


def _excess(number: float) -> float:
    """Return how far a ratio exceeds 1, for sorting: a negative ratio is the worst, and 0 / 0 counts as none."""
    return 0.0 if math.isnan(number) else number - 1 if number >= 0 else math.inf
