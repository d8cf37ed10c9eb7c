"""A finished training as it is stored: ‖G‖, ‖p ⊙ G‖, ‖p ⊙ G̃‖, ⟨p ⊙ G, p ⊙ G̃⟩ and ‖δx‖ over t, to six digits.

The criteria are computed from these when a run is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from partialsgd.meters.criteria import Criteria
from studies import results
from studies.results import RESULTS

FILE = RESULTS / "convergence.jsonl"
NORMS = ("whole", "masked", "shared", "perturbed", "inner")
"""Stored of the network and of each group of layers; of the network also ‖δx‖."""
DIGITS = 6


@final
@dataclass(frozen=True)
class Run:
    name: str
    seed: int
    settings: str
    measured: Mapping[str, Sequence[Any]]
    """Columns by name, a value for each measured step: t, level, loss, and the norms."""
    large: Mapping[str, Sequence[Any]]
    """The same at a few steps, over many examples instead of one batch."""
    reached: Mapping[str, float]
    """Final scores on held-out data."""
    seconds: float
    """Processor time."""
    date: str
    torch: str
    python: str

    def save(self, file: Path = FILE) -> None:
        results.put(file, asdict(self), key=["name", "seed"])

    def criteria(self, group: str | None = None, *, large: bool = False) -> list[Criteria]:
        """The criteria at each measured step, of the network or of a group of its layers."""
        columns = self.large if large else self.measured
        names = {name: f"{group}.{name}" for name in NORMS} if group else {name: name for name in (*NORMS, "moved")}
        rows = zip(*(columns[name] for name in names.values()), strict=True)
        return [Criteria(**dict(zip(names, row, strict=True))) for row in rows]

    def records(self, groups: Sequence[str] = ()) -> list[dict[str, Any]]:
        """The measurements as `MetricsLog` writes them, for figures."""
        of_groups = {group: self.criteria(group) for group in groups}
        records = []
        for k, criteria in enumerate(self.criteria()):
            level = self.measured["level"][k]
            inner = {group: of_groups[group][k].numbers() for group in groups}
            record = {"t": self.measured["t"][k], "level": level, "loss": {level or "model": self.measured["loss"][k]}}
            records.append({**record, "criteria": [{**criteria.numbers(), "groups": inner}]})
        return records


def row(criteria: Criteria) -> dict[str, float]:
    """The stored numbers of a measurement."""
    numbers = {name: rounded(getattr(criteria, name)) for name in (*NORMS, "moved")}
    for group, inner in criteria.groups.items():
        numbers |= {f"{group}.{name}": rounded(getattr(inner, name)) for name in NORMS}
    return numbers


def rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


Runs: TypeAlias = dict[str, list[Run]]
"""The stored runs by setting, in order of their seeds."""


def stored(file: Path = FILE) -> Runs:
    runs: Runs = {}
    for record in results.read(file):
        runs.setdefault(record["name"], []).append(Run(**record))
    return runs


def is_stored(runs: Runs, name: str, seed: int, settings: str) -> bool:
    """True if a run is stored with today's settings."""
    return any((run.seed, run.settings) == (seed, settings) for run in runs.get(name, []))
