"""One number of a run, mean ± standard deviation over seeds, and in how many seeds one is above the other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from partialsgd.meters.criteria import Criteria
from studies.convergence.runs import Run

GROUP = "narrowed"
mean = statistics.fmean


@final
@dataclass(frozen=True)
class Quantity:
    name: str
    short: str
    """For the axis of a figure."""
    of: Callable[[Criteria], float]
    over: Callable[[Sequence[float]], float]
    """How a run becomes one number: by the mean, or by the median if single values may be infinite."""
    digits: int = 2


def _beyond(ratio: float) -> float:
    """A negative ratio lies beyond every bound."""
    return math.inf if ratio < 0 else ratio


COSINE = Quantity("cosine", "cosine", lambda c: c.cosine, mean, 3)
C_NORM_2 = Quantity("c_norm²", r"$c_{\mathrm{norm}}^2$", lambda c: c.squared.c_norm, statistics.median, 3)
C_SIM_2 = Quantity("c_sim²", r"$c_{\mathrm{sim}}^2$", lambda c: c.squared.c_sim, statistics.median, 3)
C_ALIGN_2 = Quantity("c_align²", r"$c_{\mathrm{align}}^2$", lambda c: _beyond(c.squared.c_align), statistics.median, 3)
NEGATIVE = Quantity("share of negative alignments", "negative", lambda c: float(c.inner < 0), mean)


def value_of(
    run: Run, quantity: Quantity, *, group: str | None = None, level: str | None = None, large: bool = False
) -> float:
    """A quantity over the second half of a run; with a level, at its steps only."""
    columns = run.large if large else run.measured
    half = max(run.measured["t"]) / 2
    criteria_by_step = run.criteria(group, large=large)
    levels = run.measured["level"] if level else [None] * len(criteria_by_step)
    values = [
        quantity.of(criteria)
        for t, at, criteria in zip(columns["t"], levels, criteria_by_step, strict=True)
        if t >= half and at == level
    ]
    return quantity.over(values)


@final
@dataclass(frozen=True)
class Spread:
    """A quantity over the seeds of a setting."""

    values: tuple[float, ...]
    digits: int = 2

    def __str__(self) -> str:
        """Mean ± standard deviation of the sample."""
        if not self.values or not math.isfinite(sum(self.values)):
            return "∞" if self.values else "–"
        around = f" ± {statistics.stdev(self.values):.{self.digits}f}" if len(self.values) > 1 else ""
        return f"{mean(self.values):.{self.digits}f}{around}"


def spread(
    runs: Sequence[Run],
    quantity: Quantity,
    *,
    group: str | None = None,
    level: str | None = None,
    large: bool = False,
) -> Spread:
    """A quantity over runs that differ only in their seeds."""
    values = (value_of(run, quantity, group=group, level=level, large=large) for run in runs)
    return Spread(tuple(values), quantity.digits)


def reached(runs: Sequence[Run], score: str, digits: int = 3) -> Spread:
    return Spread(tuple(run.reached[score] for run in runs), digits)


def above(a: Spread, b: Spread) -> tuple[int, int]:
    """In how many of the seeds a is above b: the same seed has the same start and the same batches."""
    pairs = list(zip(a.values, b.values, strict=True))
    return sum(x > y for x, y in pairs), len(pairs)
