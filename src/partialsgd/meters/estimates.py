"""L, M, σ², F_0: a number, and how far off it may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Estimate:
    """`error` is what `note` says: a standard error, the half width of a bound, or nan where nothing tells."""

    value: float
    error: float
    note: str

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        off = "" if math.isnan(self.error) else f" ± {self.error:.2g}"
        return f"{self.value:.3g}{off} ({self.note})"


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of independent values; nan where there is one alone."""
    n = len(values)
    if n < 2:
        return math.nan
    mean = sum(values) / n
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (n * (n - 1)))
