"""Whole runs at other learning rates and warm-ups: as many looks for each row, and validation data choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from partialsgd.lab.reproduce.experiment import Cell, Comparison, Row
from partialsgd.lab.reproduce.run_folder import AT, FinishedRun, RunFolder
from partialsgd.lab.reproduce.schedule import at_cell
from partialsgd.nested.switch import FULL
from studies import pages

if TYPE_CHECKING:
    from studies.worth.plans import Plan

PLAIN = "joint"
"""The scheme of plain alternation."""


def at(cell: Cell, row: Row, seeds: int) -> Row:
    """The row at another cell."""
    name, make = named(row.name, cell), at_cell(cell, row.make)
    return replace(row, name=name, make=make, seeds=seeds, block=f"{row.block} at {cell.name}")


def named(row: str, cell: Cell) -> str:
    return f"{row}{AT}{cell.name}"


def looks(plan: Plan, folder: RunFolder, ratio: str) -> dict[str, dict[Cell, FinishedRun]]:
    """By row, the runs of the first seed at the cells that every row of this ratio has; a run may have diverged."""
    found = {}
    for row in plan.tuned_rows(ratio):
        names = {plan.own_cell(): row} | {cell: named(row, cell) for cell in plan.cells}
        runs = {cell: folder.finished(folder.run(name, 0)) for cell, name in names.items()}
        found[row] = {cell: run for cell, run in runs.items() if run is not None}
    common = [cell for cell in (plan.own_cell(), *plan.cells) if all(cell in runs for runs in found.values())]
    return {row: {cell: runs[cell] for cell in common} for row, runs in found.items()}


def best(plan: Plan, runs: Mapping[Cell, FinishedRun]) -> Cell:
    """The cell that validation data choose."""
    return max(runs, key=lambda cell: runs[cell].selection_score(plan.criterion))


def chosen(plan: Plan, folder: RunFolder, ratio: str) -> dict[str, Cell]:
    """The cell of each row that validation data choose, with the first seed; empty until every cell was tried."""
    found = looks(plan, folder, ratio)
    is_complete = all(len(runs) == 1 + len(plan.cells) for runs in found.values())
    return {row: best(plan, runs) for row, runs in found.items()} if is_complete else {}


def tuned(plan: Plan, folder: RunFolder, comparison: Comparison, ratio: str) -> Comparison:
    """The comparison with each row at its better cell by validation: the plan's, or the one that the first seed chose.

    The first seed may have had luck at a rate that is too large, so all seeds have the last word. Cells are taken in
    the order of the plan, as many as every row was trained at and have all seeds where they were chosen: a cell that
    the plan gets later changes nothing until its runs are there.
    """
    tried, own = looks(plan, folder, ratio), plan.own_cell()
    common = [cell for cell in (own, *plan.cells) if all(cell in runs for runs in tried.values())]
    cells = dict.fromkeys(tried, own)
    for count in range(len(common), 0, -1):
        first = {row: best(plan, {cell: runs[cell] for cell in common[:count]}) for row, runs in tried.items()}
        known = {row: {cell: _mean(plan, folder, row, cell) for cell in {own, first[row]}} for row in tried}
        if all(score is not None for scores in known.values() for score in scores.values()):
            cells = {row: max(scores, key=lambda cell, scores=scores: scores[cell]) for row, scores in known.items()}
            break
    names = {row: named(row, cell) for row, cell in cells.items() if cell != own}
    alone = {level: names.get(row, row) for level, row in comparison.alone.items()}
    return replace(comparison, joint=names.get(comparison.joint, comparison.joint), alone=alone)


def _mean(plan: Plan, folder: RunFolder, row: str, cell: Cell) -> float | None:
    """The mean validation score over the seeds; None until every seed was trained."""
    name = row if cell == plan.own_cell() else named(row, cell)
    runs = [folder.finished(folder.run(name, seed)) for seed in range(plan.seeds)]
    scores = [run.selection_score(plan.criterion) for run in runs if run is not None]
    return fmean(scores) if len(scores) == plan.seeds else None


def section(found: Sequence[tuple[Plan, RunFolder]]) -> str:
    """For each plan the test scores at every cell, and what is gained at those that validation chooses."""
    parts = [part for plan, folder in found for part in _parts(plan, folder)]
    return "\n\n".join(parts) or "No run at another rate is stored yet."


def _parts(plan: Plan, folder: RunFolder) -> list[str]:
    """A table for each set of cells, and a sentence for each ratio; nothing below two cells."""
    by_cells: dict[tuple[Cell, ...], list[tuple[str, ...]]] = {}
    sentences = []
    for ratio in plan.ratios:
        found = looks(plan, folder, ratio)
        cells = tuple(sorted(next(iter(found.values())), key=lambda cell: (cell.lr, cell.warm_up)))
        if len(cells) < 2:
            continue
        comparison, gains = plan.comparison(PLAIN, ratio), {}
        for level, row in comparison.alone.items():
            at_best = {}
            for way, name, of in (("alone", row, FULL), ("jointly", comparison.joint, level)):
                scores = {cell: _score(plan, run, of) for cell, run in found[name].items()}
                choice = best(plan, found[name])
                at_best[way] = scores[choice]
                shown = (_text(scores[cell]) for cell in cells)
                by_cells.setdefault(cells, []).append((ratio, f"{level} {way}", *shown, _says(choice, cells)))
            gains[level] = at_best["jointly"] - at_best["alone"]
        if not any(map(math.isnan, gains.values())):
            sentences.append(_gain(plan, ratio, gains))
    tables = [
        pages.table((f"{plan.says}, r", "network", *(_says(cell, cells) for cell in cells), "chosen"), rows)
        for cells, rows in by_cells.items()
    ]
    return [*tables, " ".join(sentences)] if tables else []


def _score(plan: Plan, run: FinishedRun, level: str) -> float:
    """The test score; not a number if the run diverged."""
    return math.nan if run.summary is None else plan.factor * run.summary["levels"][level]["test"][plan.score]


def _text(score: float) -> str:
    return "diverged" if math.isnan(score) else f"{score:.2f}"


def _says(cell: Cell, cells: Sequence[Cell]) -> str:
    """The rate, and the warm-up if it is not that of most cells."""
    usual = max((other.warm_up for other in cells), key=[other.warm_up for other in cells].count)
    return f"{cell.lr:g}" if cell.warm_up == usual else f"{cell.lr:g}, warm-up {cell.warm_up}"


def _gain(plan: Plan, ratio: str, gains: Mapping[str, float]) -> str:
    return (
        f"At r = {ratio}, each row as validation chose, one seed, the joint run is {gains['core']:+.2f} "
        f"{plan.score} ahead with the core and {gains[FULL]:+.2f} with the full network."
    )
