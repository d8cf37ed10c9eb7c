"""‖G‖, ‖p ⊙ G‖, ‖p ⊙ G̃‖, ⟨p ⊙ G, p ⊙ G̃⟩, ‖δx‖ over t: a finished training as a small file.

What the criteria are derived from is kept, to six digits, and the criteria are derived again when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from benchmarks.figures import RESULTS
from benchmarks.methods.rows import read, write
from partialsgd.meters.criteria import Criteria

FOLDER = RESULTS / "convergence"
KEPT = ("whole", "masked", "shared", "perturbed", "inner")
"""Of each group of layers too; of the whole network also ‖δx‖."""
DIGITS = 6


@final
@dataclass(frozen=True)
class Run:
    name: str
    seed: int
    settings: str
    measured: Mapping[str, Sequence[Any]]
    """By name, a number for each measured step: t, level, loss, and what the criteria are made of."""
    large: Mapping[str, Sequence[Any]]
    """The same at some steps over many examples instead of one batch."""
    reached: Mapping[str, float]
    """On data that was not learned from."""
    seconds: float
    """Processor time."""
    date: str
    torch: str
    python: str

    def save(self, folder: Path = FOLDER) -> None:
        write(place(folder, self.name, self.seed), asdict(self), indent=None)

    def criteria(self, group: str | None = None, *, large: bool = False) -> list[Criteria]:
        """At each measured step, of the network or of a group of its layers."""
        columns = self.large if large else self.measured
        names = {name: f"{group}.{name}" for name in KEPT} if group else {name: name for name in (*KEPT, "moved")}
        rows = zip(*(columns[name] for name in names.values()), strict=True)
        return [Criteria(**dict(zip(names, row, strict=True))) for row in rows]

    def records(self, groups: Sequence[str] = ()) -> list[dict[str, Any]]:
        """As `MetricsLog` writes them, for figures."""
        of_groups = {group: self.criteria(group) for group in groups}
        found = []
        for k, criteria in enumerate(self.criteria()):
            level = self.measured["level"][k]
            inner = {group: of_groups[group][k].numbers() for group in groups}
            record = {"t": self.measured["t"][k], "level": level, "loss": {level or "model": self.measured["loss"][k]}}
            found.append({**record, "criteria": [{**criteria.numbers(), "groups": inner}]})
        return found


def row(criteria: Criteria) -> dict[str, float]:
    """What is kept of a measurement."""
    found = {name: rounded(getattr(criteria, name)) for name in (*KEPT, "moved")}
    for group, inner in criteria.groups.items():
        found |= {f"{group}.{name}": rounded(getattr(inner, name)) for name in KEPT}
    return found


def rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def place(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name}_{seed}.json"


def is_done(folder: Path, name: str, seed: int, settings: str) -> bool:
    """Whether it is stored, with the settings of today."""
    return bool(read(place(folder, name, seed)).get("settings") == settings)


def stored(name: str, folder: Path = FOLDER) -> list[Run]:
    """The finished runs of a setting, by seed."""
    found = [Run(**read(path)) for path in folder.glob(f"{name}_[0-9]*.json")]
    return sorted((run for run in found if run.name == name), key=lambda run: run.seed)
