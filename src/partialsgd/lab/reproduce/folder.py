"""The runs of an experiment on disk: grid/<row>/<cell> to choose by, rows/<row>/seed<k> to show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias, final

from partialsgd.lab.reproduce.plans import Cell, Grid, Row
from partialsgd.lab.runs.metrics import FAILED, evaluation
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.settings import Settings
from partialsgd.logging import metrics_log

Summary: TypeAlias = dict[str, Any]

_NO_CONFIG = "it is at its end, and has no config.json"
_NO_LOOK = "it is at its end, and its metrics.jsonl has no evaluation, or is not there"
_ANEW = "without that directory the same call trains it anew"

AT = "@"
"""Between a row and the cell that it is trained at, where its grid has chosen another."""


@final
@dataclass(frozen=True)
class Evaluation:
    """An evaluation on the validation data."""

    steps: int
    epoch: float
    levels: Mapping[str, Mapping[str, float]]


@final
@dataclass(frozen=True)
class Ended:
    """A run at its end."""

    path: Path

    @cached_property
    def settings(self) -> Settings:
        if not (self.path / "config.json").is_file():
            raise ValueError(f"{self.path} is damaged: {_NO_CONFIG}; {_ANEW}")
        return Run(self.path).settings

    @cached_property
    def summary(self) -> Summary | None:
        """None where the training has diverged."""
        return Run(self.path).summary

    @cached_property
    def looks(self) -> list[Evaluation]:
        found = list(_looks(self.path / "metrics.jsonl"))
        if not found and self.summary is not None:
            raise ValueError(f"{self.path} is damaged: {_NO_LOOK}; {_ANEW}")
        return found

    def merit(self, judge: str) -> float:
        """The best mean over the levels that were trained, larger is better; the worst of all if it diverged."""
        if self.summary is None:
            return -math.inf
        trained = [level for level, row in self.summary["levels"].items() if row["updates"]]
        sign = -1.0 if judge == "loss" else 1.0
        found = [sign * fmean(look.levels[level][judge] for level in trained) for look in self.looks]
        return max((value for value in found if not math.isnan(value)), default=-math.inf)


@final
class Folder:
    """Where an experiment keeps its runs. Nothing is remembered elsewhere, so a kill loses nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ended: dict[Path, Ended] = {}

    def cell(self, row: str, cell: Cell) -> Path:
        return self.path / "grid" / row / cell.name

    def run(self, row: str, seed: int) -> Path:
        return self.path / "rows" / row / f"seed{seed}"

    def ended(self, path: Path) -> Ended | None:
        """What is at its end stays as it is, and is read once."""
        if path not in self._ended and any((path / name).exists() for name in ("summary.json", FAILED)):
            self._ended[path] = Ended(path)
        return self._ended.get(path)

    def seeds(self, row: str) -> list[Ended]:
        """The runs of a row that are at their end."""
        paths = (self.run(row, seed) for seed in self._begun(row))
        return [ended for path in paths if (ended := self.ended(path)) is not None]

    def begun(self, row: str) -> int:
        """How many seeds, from 0 on, have all that is there among them, finished or not."""
        return 1 + max(self._begun(row), default=-1)

    def _begun(self, row: str) -> list[int]:
        names = (path.name.removeprefix("seed") for path in (self.path / "rows" / row).glob("seed*"))
        return sorted(int(name) for name in names if name.isdigit())

    def scored(self, row: str) -> list[Ended]:
        """Those that have a score."""
        return [ended for ended in self.seeds(row) if ended.summary is not None]

    def tried(self, row: str, grid: Grid) -> dict[Cell, Ended]:
        """The cells of a row's grid that are at their end."""
        found = {cell: self.ended(self.cell(row, cell)) for cell in grid.cells}
        return {cell: ended for cell, ended in found.items() if ended is not None}

    def tried_before(self, row: str, grid: Grid) -> dict[Cell, Ended]:
        """Cells at their end that are no longer in the grid; nothing is chosen from them."""
        found = ((path, Cell.named(path.name)) for path in sorted((self.path / "grid" / row).glob("lr*-warm*")))
        earlier = [(path, cell) for path, cell in found if cell is not None and cell not in grid.cells]
        return {cell: ended for path, cell in earlier if (ended := self.ended(path)) is not None}

    def chosen(self, row: str, grid: Grid, judge: str) -> Cell | None:
        """The best cell, once all of them are known; none if all have diverged. A grid of one needs no search."""
        if len(grid.cells) == 1:
            return grid.cells[0]
        merits = {cell: ended.merit(judge) for cell, ended in self.tried(row, grid).items()}
        best = max(merits, key=merits.__getitem__, default=None)
        is_known = len(merits) == len(grid.cells) and best is not None and merits[best] > -math.inf
        return best if is_known else None

    def elsewhere(self, row: str, grid: Grid) -> list[str]:
        """The names of the row's whole runs at cells that its grid has not chosen, as ROW@CELL."""
        names = (f"{row}{AT}{cell.name}" for cell in grid.cells)
        return [name for name in names if (self.path / "rows" / name).is_dir()]

    def shown(self, row: str, grid: Grid, judge: str) -> str:
        """Of a row's whole runs at several cells those that are best by validation, with the first seed."""
        merits = {
            name: ended.merit(judge)
            for name in (row, *self.elsewhere(row, grid))
            if (ended := self.ended(self.run(name, 0))) is not None
        }
        return max(merits, key=merits.__getitem__, default=row)

    def settings(self, row: Row, seed: int, grid: Grid, judge: str) -> Settings | None:
        """Of the run that is shown, once it is known."""
        made = row.make(self, seed)
        if made is None or row.tuned_as is None:
            return made
        cell = self.chosen(row.tuned_as, grid, judge)
        return None if cell is None else cell.of(made)


def flops_of(summary: Mapping[str, Any]) -> float:
    """Training FLOPs of a run, all levels together."""
    return float(sum(row["flops"] for row in summary["levels"].values()))


def _looks(path: Path) -> Iterator[Evaluation]:
    """Only the lines of evaluations are parsed: there are a thousand times as many of steps."""
    if not path.exists():
        return
    for k, line in enumerate(path.read_bytes().splitlines(), 1):
        if b'"valid/' in line:
            yield _look(metrics_log.parse(line, f"line {k} of {path}"))


def _look(record: metrics_log.Record) -> Evaluation:
    return Evaluation(record["t"] + 1, record["epoch"], evaluation(record))
