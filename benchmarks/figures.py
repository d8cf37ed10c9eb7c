"""Figures: the measured value and its limit, and the file that stores them."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, final

import torch

from benchmarks.harness import Estimate, Times, Track
from studies import results

RESULTS = Path(__file__).parent / "results.jsonl"
FEWEST_ROUNDS = 15
THREADS = 2


@final
@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    what: str
    measured: Estimate
    limit: float | None = None
    """None where a figure is only reported."""
    unit: Literal["×", "µs", "s", "weights"] = "×"
    medians: Mapping[str, float] = field(default_factory=dict)
    """The values that it was computed from: seconds of each contestant, or bytes."""

    @property
    def verdict(self) -> str:
        """`~` where the interval holds the limit, so that another run may say otherwise."""
        if self.limit is None:
            return "reported"
        clear = self.measured.high <= self.limit or self.measured.low > self.limit
        return ("met" if self.measured.value <= self.limit else "missed") + ("" if clear else " ~")

    def written(self, number: float | None) -> str:
        if number is None:
            return "–"
        if self.unit != "×":
            return f"{number:,.2f} s" if self.unit == "s" else f"{number:,.0f} {self.unit}"
        return f"{number:.3g} ×" if number >= 10 else f"{number:.3f} ×"

    def cells(self) -> tuple[str, str, str, str, str]:
        low, high = self.written(self.measured.low), self.written(self.measured.high)
        interval = "exact" if low == high else f"{low.split()[0]} – {high}"
        return self.what, self.written(self.limit), self.written(self.measured.value), interval, self.verdict


def ratio(what: str, times: Times, name: str, baseline: str, limit: float | None = None) -> Figure:
    """One contestant's time ÷ another's."""
    return Figure(what, times.ratio(name, baseline), limit, medians=times.medians(name, baseline))


def sum_ratio(what: str, times: Times, name: str, parts: Sequence[str], limit: float | None = None) -> Figure:
    """One contestant's time ÷ that of several others together."""
    return Figure(what, times.ratio_to_sum(name, parts), limit, medians=times.medians(name, *parts))


@final
@dataclass(frozen=True)
class Record:
    """A benchmark's figures and what one must know to compare them with others."""

    name: str
    figures: Sequence[Figure]
    threads: int
    rounds: int
    others: float | None
    """The share of the machine's processor time that other processes took: above 0.05 the figures are doubtful."""
    date: str
    torch: str = torch.__version__
    python: str = platform.python_version()

    def save(self, file: Path = RESULTS) -> None:
        results.put(file, asdict(self), key=["name", "threads"])


def record(name: str, figures: Sequence[Figure], track: Track, others: float | None) -> Record:
    today = datetime.now(timezone.utc).date().isoformat()
    return Record(name, figures, track.threads, track.rounds, others, today)


def stored(file: Path = RESULTS) -> dict[tuple[str, int], Record]:
    """The stored records by name and number of threads."""
    records = (_record(fields) for fields in results.read(file))
    return {(record.name, record.threads): record for record in records}


def _record(fields: dict[str, Any]) -> Record:
    figures = [Figure(**{**figure, "measured": Estimate(**figure["measured"])}) for figure in fields["figures"]]
    return Record(**{**fields, "figures": figures})
