"""Rows at another cell than the one that a short search chose, trained to their end: the better one is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from partialsgd.lab.reproduce.folder import AT, Folder
from partialsgd.lab.reproduce.plans import Cell, Experiment, Line, Make, Row, Together
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings

_NO_LEVEL = "–"


def named(folder: Folder) -> list[str]:
    """Those that are in a folder, as ROW@CELL."""
    return sorted(path.name for path in folder.path.glob(f"rows/*{AT}*"))


def asked_for(experiment: Experiment, folder: Folder, known: Sequence[Row], names: Iterable[str]) -> list[Row]:
    """A row for each name of the form ROW@CELL, as core-1_32-zero@lr0.006-warm240."""
    asked = [name for name in names if AT in name]
    for name in asked:
        of, _, at = name.partition(AT)
        if of not in _tuned(known):
            raise WrongCall(f"--rows {name}: {experiment.name} has no row {of} that is tuned")
        if at not in _cells(experiment):
            raise WrongCall(f"--rows {name}: the grid has no cell {at}; it has {', '.join(_cells(experiment))}")
        if folder.chosen(of, experiment.grid, experiment.judge) == _cells(experiment)[at]:
            raise WrongCall(f"--rows {name}: this is the cell that the grid has chosen; --rows {of} trains it")
    return rows(experiment, known, asked)


def rows(experiment: Experiment, known: Sequence[Row], names: Iterable[str]) -> list[Row]:
    """Those of the names that mean a row and a cell of the grid; a folder may have others, of an earlier one."""
    tuned, cells = _tuned(known), _cells(experiment)
    parts = [(name, *name.split(AT, 1)) for name in names if AT in name]
    return [_row(tuned[of], cells[at], name) for name, of, at in parts if of in tuned and at in cells]


def _tuned(known: Sequence[Row]) -> dict[str, Row]:
    return {row.name: row for row in known if row.tuned_as == row.name}


def _cells(experiment: Experiment) -> dict[str, Cell]:
    return {cell.name: cell for cell in experiment.grid.cells}


def _row(row: Row, cell: Cell, name: str) -> Row:
    return replace(row, name=name, make=_at(cell, row.make), tuned_as=None, optional=True, block=name)


def _at(cell: Cell, make: Make) -> Make:
    def made(folder: Folder, seed: int) -> Settings | None:
        settings = make(folder, seed)
        return None if settings is None else cell.of(settings)

    return made


def lines(experiment: Experiment, folder: Folder) -> list[Line]:
    """Those of the table, each of the cell that is shown."""
    shown = _shown(experiment, folder)
    return [
        replace(line, row=shown(line.row), equal_flops=line.equal_flops and shown(line.equal_flops))
        for line in experiment.lines(folder)
    ]


def together(experiment: Experiment, folder: Folder) -> list[Together]:
    """Joint rows and those alone, each of the cell that is shown."""
    shown = _shown(experiment, folder)
    return [
        replace(each, joint=shown(each.joint), alone={level: shown(row) for level, row in each.alone.items()})
        for each in experiment.together(folder)
    ]


def _shown(experiment: Experiment, folder: Folder) -> Callable[[str], str]:
    return lambda row: folder.shown(row, experiment.grid, experiment.judge)


def found(experiment: Experiment, folder: Folder) -> Iterator[dict[str, Any]]:
    """Of each row with runs at another cell, these and the chosen one: scores by level and seed, and what chooses.

    Where all runs have diverged there is no level, and no score.
    """
    there = rows(experiment, experiment.rows(folder), named(folder))
    for of in dict.fromkeys(row.name.partition(AT)[0] for row in there):
        chosen = folder.chosen(of, experiment.grid, experiment.judge)
        shown = folder.shown(of, experiment.grid, experiment.judge)
        for cell in experiment.grid.cells:
            name = of if cell == chosen else f"{of}{AT}{cell.name}"
            runs = folder.seeds(name)
            trained = [(run, run.summary["levels"]) for run in runs if run.summary is not None]
            none = [_NO_LEVEL] if runs and not trained else []
            for level in dict.fromkeys(level for _, levels in trained for level in levels) or none:
                yield {
                    "row": of,
                    "lr": cell.lr,
                    "warm_up": cell.warm_up,
                    "chosen": cell == chosen,
                    "shown": name == shown,
                    "level": level,
                    "scores": {
                        str(run.settings.seed): experiment.factor * levels[level]["test"][experiment.score]
                        for run, levels in trained
                    },
                    "diverged": len(runs) - len(trained),
                    "merit": runs[0].merit(experiment.judge) if trained else None,
                }
