"""Differences between two ways of training, taken seed by seed, with the interval in which their mean lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import final

_STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t at 95 %, two-sided, by the number of pairs; for more pairs the last one, which is a little too wide."""


@final
@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and half the length of its 95 % interval, which one pair alone does not have."""

    mean: float
    half: float | None
    pairs: int

    @property
    def is_clear(self) -> bool:
        """True if the interval does not contain 0."""
        return self.half is not None and abs(self.mean) > self.half

    def __str__(self) -> str:
        if self.half is None:
            return f"{_short(self.mean)} (one seed)"
        return f"{_short(self.mean)} ± {self.half:.2g}"


def _short(mean: float) -> str:
    return f"{round(mean, 9) + 0.0:+.3g}"  # the sum takes the sign off a zero


def difference(differences: Sequence[float]) -> Difference:
    """The mean of the differences, one for each seed, and its interval under Student's t."""
    pairs = len(differences)
    if pairs < 2:
        return Difference(fmean(differences), None, pairs)
    quantile = _STUDENT.get(pairs, _STUDENT[max(_STUDENT)])
    return Difference(fmean(differences), quantile * stdev(differences) / math.sqrt(pairs), pairs)
