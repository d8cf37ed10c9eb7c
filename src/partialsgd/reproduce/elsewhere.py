"""Rows at another cell than the chosen one, trained to their end: has the short search chosen well?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from partialsgd.recipes.errors import WrongCall
from partialsgd.recipes.settings import Settings
from partialsgd.reproduce.folder import Folder
from partialsgd.reproduce.plans import Cell, Experiment, Make, Row

_AT = "@"
_NO_LEVEL = "–"


def named(folder: Folder) -> list[str]:
    """Those that are in a folder, as ROW@CELL."""
    return sorted(path.name for path in folder.path.glob(f"rows/*{_AT}*"))


def rows(experiment: Experiment, known: Sequence[Row], names: Iterable[str]) -> list[Row]:
    """A row for each name of the form ROW@CELL, as core-1_32-zero@lr0.006-warm240."""
    return [_row(experiment, known, name) for name in names if _AT in name]


def _row(experiment: Experiment, known: Sequence[Row], name: str) -> Row:
    of, _, at = name.partition(_AT)
    row = next((row for row in known if row.name == of and row.tuned_as == of), None)
    cell = next((cell for cell in experiment.grid.cells if cell.name == at), None)
    if row is None:
        raise WrongCall(f"--rows {name}: {experiment.name} has no row {of} that is tuned")
    if cell is None:
        cells = ", ".join(cell.name for cell in experiment.grid.cells)
        raise WrongCall(f"--rows {name}: the grid has no cell {at}; it has {cells}")
    return replace(row, name=name, make=_at(cell, row.make), tuned_as=None, optional=True, block=name)


def _at(cell: Cell, make: Make) -> Make:
    def made(folder: Folder, seed: int) -> Settings | None:
        settings = make(folder, seed)
        return None if settings is None else cell.of(settings)

    return made


def found(experiment: Experiment, folder: Folder) -> Iterator[dict[str, Any]]:
    """Of each row with runs at another cell, these and the chosen one: scores by level and seed, and what chooses.

    Where all runs have diverged there is no level, and no score.
    """
    for of in dict.fromkeys(name.partition(_AT)[0] for name in named(folder)):
        chosen = folder.chosen(of, experiment.grid, experiment.judge)
        for cell in experiment.grid.cells:
            runs = folder.seeds(of if cell == chosen else f"{of}{_AT}{cell.name}")
            trained = [(run, run.summary["levels"]) for run in runs if run.summary is not None]
            none = [_NO_LEVEL] if runs and not trained else []
            for level in dict.fromkeys(level for _, levels in trained for level in levels) or none:
                yield {
                    "row": of,
                    "lr": cell.lr,
                    "warm_up": cell.warm_up,
                    "chosen": cell == chosen,
                    "level": level,
                    "scores": {
                        str(run.settings.seed): experiment.factor * levels[level]["test"][experiment.score]
                        for run, levels in trained
                    },
                    "diverged": len(runs) - len(trained),
                    "merit": fmean(run.merit(experiment.judge) for run, _ in trained) if trained else None,
                }
