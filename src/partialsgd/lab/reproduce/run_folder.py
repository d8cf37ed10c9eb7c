"""The runs of an experiment on disk: `grid/<row>/<cell>` to choose a cell by, `rows/<row>/seed<k>` to show.

A run of the right name is used only if its settings are those that the experiment asks for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias, final

from partialsgd.lab.reproduce.experiment import Cell, Experiment, Row
from partialsgd.lab.runs.run import FAILED, Run, evaluation
from partialsgd.lab.training.errors import AlreadyThere
from partialsgd.lab.training.settings import Settings
from partialsgd.logging import metrics_log

Summary: TypeAlias = dict[str, Any]

Scored: TypeAlias = "tuple[FinishedRun, Summary]"
"""A run that did not diverge."""

AT = "@"
"""Stands between a row and a cell in the name of whole runs at a cell that the grid did not choose."""

_RETRAIN = "remove that directory and repeat the command to train it again"
_PLACE_SETTINGS = frozenset({"out", "threads"})
"""Settings that say where a run was made, not what it is."""
_LEVEL_SETTINGS = frozenset({"ratio", "init"})
"""Settings without effect on a network without levels."""
PATH_PARTS = {"data": 1, "start": 2, "teacher": 2}
"""How many last parts of a path must agree: a folder may have been moved, and a run stores the hash of its data."""


@final
class Evaluation(NamedTuple):
    """An evaluation on the validation data."""

    steps: int
    epoch: float
    levels: Mapping[str, Mapping[str, float]]


@final
@dataclass(frozen=True)
class FinishedRun:
    """A run that ended, with a score or because it diverged."""

    path: Path

    @cached_property
    def settings(self) -> Settings:
        if not (self.path / "config.json").is_file():
            raise ValueError(f"{self.path} is damaged: it ended, and has no config.json; {_RETRAIN}")
        return Run(self.path).settings

    @cached_property
    def summary(self) -> Summary | None:
        """The run's summary; None if the training diverged."""
        return Run(self.path).summary

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        records = [  # the other lines, of steps, are a thousand times as many
            metrics_log.parse(line, f"line {k} of {path}") for k, line in enumerate(lines, 1) if b'"valid/' in line
        ]
        evaluations = [Evaluation(record["t"] + 1, record["epoch"], evaluation(record)) for record in records]
        if not evaluations and self.summary is not None:
            raise ValueError(f"{self.path} is damaged: its metrics.jsonl is missing or has no evaluation; {_RETRAIN}")
        return evaluations

    @property
    def epochs(self) -> float:
        return self.evaluations[-1].epoch  # every run evaluates after its last step

    def selection_score(self, criterion: str) -> float:
        """The best validation mean over the trained levels; larger is better, and −inf if the run diverged."""
        if self.summary is None:
            return -math.inf
        trained = [level for level, row in self.summary["levels"].items() if row["updates"]]
        sign = -1.0 if criterion == "loss" else 1.0
        scores = [sign * fmean(each.levels[level][criterion] for level in trained) for each in self.evaluations]
        return max((score for score in scores if not math.isnan(score)), default=-math.inf)


@final
class RunFolder:
    """The directory of an experiment. Nothing is stored outside its runs, so a kill loses nothing."""

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path = path
        self.grid, self.criterion = experiment.grid, experiment.criterion
        self._finished: dict[Path, FinishedRun] = {}

    def cell(self, row: str, cell: Cell) -> Path:
        return self.path / "grid" / row / cell.name

    def run(self, row: str, seed: int) -> Path:
        return self.path / "rows" / row / f"seed{seed}"

    def finished(self, path: Path) -> FinishedRun | None:
        """The run at a path if it ended. Finished runs do not change, so each is read once."""
        if path not in self._finished and any((path / name).exists() for name in ("summary.json", FAILED)):
            self._finished[path] = FinishedRun(path)
        return self._finished.get(path)

    def seeds(self, row: str) -> list[FinishedRun]:
        """The finished runs of a row."""
        runs = (self.finished(self.run(row, seed)) for seed in self._started(row))
        return [run for run in runs if run is not None]

    def scored(self, row: str) -> list[Scored]:
        """The finished runs of a row that did not diverge."""
        return [(run, run.summary) for run in self.seeds(row) if run.summary is not None]

    def diverged(self, row: str) -> int:
        return len(self.seeds(row)) - len(self.scored(row))

    def started_seeds(self, row: str) -> int:
        """One more than the largest seed of a row that was started."""
        return 1 + max(self._started(row), default=-1)

    def _started(self, row: str) -> list[int]:
        names = (path.name.removeprefix("seed") for path in (self.path / "rows" / row).glob("seed*"))
        return sorted(int(name) for name in names if name.isdigit())

    def searched(self, row: str) -> dict[Cell, FinishedRun]:
        """The finished cells of a row's grid."""
        runs = {cell: self.finished(self.cell(row, cell)) for cell in self.grid.cells}
        return {cell: run for cell, run in runs.items() if run is not None}

    def searched_before(self, row: str) -> dict[Cell, FinishedRun]:
        """Finished cells that are no longer in the grid; the choice ignores them."""
        paths = {Cell.from_name(path.name): path for path in sorted((self.path / "grid" / row).glob("lr*-warm*"))}
        earlier = {cell: path for cell, path in paths.items() if cell is not None and cell not in self.grid.cells}
        return {cell: run for cell, path in earlier.items() if (run := self.finished(path)) is not None}

    def chosen_cell(self, row: str) -> Cell | None:
        """The best cell once all are finished; None before, or if all diverged. A grid of one needs no search."""
        if len(self.grid.cells) == 1:
            return self.grid.cells[0]
        scores = {cell: run.selection_score(self.criterion) for cell, run in self.searched(row).items()}
        best = max(scores, key=scores.__getitem__, default=None)
        is_known = len(scores) == len(self.grid.cells) and best is not None and scores[best] > -math.inf
        return best if is_known else None

    def shown_row(self, row: str) -> str:
        """The row's name, or ROW@CELL if its runs at another cell are better on validation data, with seed 0."""
        others = (f"{row}{AT}{cell.name}" for cell in self.grid.cells)
        scores = {
            name: run.selection_score(self.criterion)
            for name in (row, *others)
            if (run := self.finished(self.run(name, 0))) is not None
        }
        return max(scores, key=scores.__getitem__, default=row)

    def settings(self, row: Row, seed: int) -> Settings | None:
        """The settings of a row's run; None while a run that they depend on is missing."""
        settings = row.make(self, seed)
        if settings is None or row.tuned_as is None:
            return settings
        cell = self.chosen_cell(row.tuned_as)
        return None if cell is None else cell.apply(settings)


def total_flops(summary: Mapping[str, Any]) -> float:
    """The training FLOPs of a run, all levels together."""
    return float(sum(row["flops"] for row in summary["levels"].values()))


def equal_flops_name(name: str, other: str, folder: RunFolder) -> str:
    """The name of the row at equal FLOPs; it has the cell of the other row's runs if its grid chose another one.

    So runs that exist keep their meaning when better ones are found.
    """
    _, _, cell = folder.shown_row(other).partition(AT)
    return f"{name}-flops-{cell}" if cell else f"{name}-flops"


def equal_flops(joint: str, other: str, name: str, seeds: int, data: str | None) -> Row:
    """A row like `other`, at the cell that is shown, for as many steps as the FLOPs of the joint row pay for.

    `data` is where the data are now: the folder may have been moved since.
    """

    def make(folder: RunFolder, seed: int) -> Settings | None:
        first, second = (folder.finished(folder.run(folder.shown_row(row), seed)) for row in (joint, other))
        if first is None or second is None or first.summary is None or second.summary is None:
            return None
        done = second.summary["steps"]
        steps = max(1, round(total_flops(first.summary) / (total_flops(second.summary) / done)))
        changes: Any = {"data": data, "max_steps": steps, "epochs": math.ceil(steps / (done / second.epochs))}
        return replace(second.settings, **changes)

    return Row(name, make, seeds, tuned_as=None, waits_for=f"{joint} and {other}")


def require_same_settings(path: Path, settings: Settings) -> None:
    """Raise if the run at `path` was made with other settings."""
    stored = Run(path).settings
    if stored.recipe != settings.recipe:
        raise AlreadyThere(f"{path} is a run of {stored.recipe}, not of {settings.recipe}; give another --out")
    before, now = vars(stored), vars(settings)
    ignored = _PLACE_SETTINGS | (_LEVEL_SETTINGS if now.get("nest") == before.get("nest") == "none" else frozenset())
    differences = [
        f"{name} {before[name]!r} instead of {value!r}"
        for name, value in now.items()
        if name not in ignored and _comparable(name, before.get(name)) != _comparable(name, value)
    ]
    if differences:
        raise AlreadyThere(
            f"{path} is a run with other settings ({', '.join(differences)}); give the options that it was made with, "
            "like --scale, --epochs or --start, or another --out"
        )


def _comparable(name: str, value: Any) -> Any:
    is_path = name in PATH_PARTS and value is not None
    return Path(os.path.abspath(value)).parts[-PATH_PARTS[name] :] if is_path else value
