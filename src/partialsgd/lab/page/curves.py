"""f over t, by level: what the figures of a page draw, in which look, and the words for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from partialsgd.lab.page import numbers
from partialsgd.lab.page.runs import Run
from partialsgd.logging import series
from partialsgd.logging.series import Series

Curves: TypeAlias = dict[str, Series]
"""By the name that the legend gives them."""

MOST = 100
"""Points of a curve: of more, the noise of the batches hides the others."""


def name_of(run: Run, level: str, runs: Sequence[Run]) -> str:
    return level if len(runs) == 1 else f"{run.name} · {level}"


def names(runs: Sequence[Run]) -> list[str]:
    """Every curve that a page may have, in one order: a level has the same look in all figures."""
    found = [(run, name) for run in runs for name in (*(level.name for level in run.levels), *measured(run))]
    return list(dict.fromkeys(name_of(run, name, runs) for run, name in found))


def measured(run: Run) -> dict[str, str]:
    """The levels and probes whose criteria were measured: the page's name for each, and the records'."""
    return {run.called(name): name for name in series.names(run.steps)}


def training_loss(runs: Sequence[Run]) -> Curves:
    return _by_name(runs, _losses)


def validation(runs: Sequence[Run], name: str) -> Curves:
    return _by_name(runs, lambda run: run.validation(name))


def thinned(values: Mapping[int, float], most: int = MOST) -> dict[int, float]:
    """Means of as many neighbours as leave so many points, each at the middle one's step."""
    size = math.ceil(len(values) / most)
    if size <= 1:
        return dict(values)
    steps = sorted(values)
    groups = [steps[k : k + size] for k in range(0, len(steps), size)]
    return {group[len(group) // 2]: fmean(values[t] for t in group) for group in groups}


def told(curves: Curves, unit: str, *, best: Callable[..., int] = min) -> str:
    """Where each curve begins, ends and is best."""
    return " ".join(_told(name, curve, unit, best) for name, curve in curves.items())


def _told(name: str, curve: Series, unit: str, best: Callable[..., int]) -> str:
    drawn = {t: value for t, value in sorted(curve.values.items()) if math.isfinite(value)}
    if not drawn:
        return f"{name}: nothing to draw."
    first, last = next(iter(drawn)), next(reversed(drawn))
    top = best(drawn, key=drawn.__getitem__)
    word = "lowest" if best is min else "highest"
    return (
        f"{name}: {unit} {numbers.plain(drawn[first])} at step {first:,}, {numbers.plain(drawn[last])} at step "
        f"{last:,}, {word} {numbers.plain(drawn[top])} at step {top:,}."
    )


def _by_name(runs: Sequence[Run], found: Callable[[Run], Mapping[str, Mapping[int, float]]]) -> Curves:
    return {
        name_of(run, level, runs): series.ratio({t: {"": v} for t, v in thinned(values).items()}, "", signed=True)
        for run in runs
        for level, values in found(run).items()
    }


def _losses(run: Run) -> dict[str, dict[int, float]]:
    """Of a level that a step passed more than once the mean."""
    found: dict[str, dict[int, list[float]]] = {}
    for step in run.steps:
        for level, loss in step["loss"].items():
            found.setdefault(run.called(level), {}).setdefault(step["t"], []).append(loss)
    return {level: {t: fmean(values) for t, values in losses.items()} for level, losses in found.items()}
