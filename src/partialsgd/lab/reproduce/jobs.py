"""What is to be trained next: a pure function of the runs on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any, final

from partialsgd.lab.reproduce import elsewhere
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.plans import Cell, Experiment, Row
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings


@final
@dataclass(frozen=True)
class Job:
    """One run to make, or to go on with."""

    label: str
    path: Path
    settings: Settings


def ready(experiment: Experiment, folder: Folder, wanted: Sequence[str] = ()) -> list[Job]:
    """In order of value, what can be trained now and is not at its end."""
    jobs = _jobs(experiment, folder, asked_for(experiment, folder, wanted))
    return [job for job in jobs if folder.ended(job.path) is None]


def every(experiment: Experiment, folder: Folder) -> list[Job]:
    """All that can be told by now, finished or not, optional rows among them."""
    rows = experiment.rows(folder)
    rows = [*rows, *elsewhere.rows(experiment, rows, elsewhere.named(folder))]
    begun = {row.name: folder.begun(row.name) for row in rows}  # more seeds than are asked for now
    return _jobs(experiment, folder, [replace(row, seeds=max(row.seeds, begun[row.name])) for row in rows])


def asked_for(experiment: Experiment, folder: Folder, wanted: Sequence[str]) -> list[Row]:
    """By default all rows that are not optional; else those that a word or a pattern means, in which 1/32 is 1_32."""
    rows = experiment.rows(folder)
    if not wanted:
        return [row for row in rows if not row.optional]
    words = {word: word.replace("/", "_") for word in wanted}
    rows = [*rows, *elsewhere.asked_for(experiment, folder, rows, words.values())]
    meant = {word: {row.name for row in _meant(rows, name)} for word, name in words.items()}
    if unknown := [word for word, names in meant.items() if not names]:
        known = ", ".join(dict.fromkeys(row.name for row in rows))
        raise WrongCall(f"--rows {' '.join(unknown)}: {experiment.name} has no such row; it has {known}")
    return [row for row in rows if any(row.name in names for names in meant.values())]


def _meant(rows: Sequence[Row], word: str) -> list[Row]:
    """The row of that name alone; or all that fit a pattern; or all with such a part, optional ones by their first."""
    if exact := [row for row in rows if row.name == word]:
        return exact
    if any(sign in word for sign in "*?["):
        return [row for row in rows if fnmatch(row.name, word)]
    return [row for row in rows if word in _parts(row)]


def _parts(row: Row) -> list[str]:
    parts = row.name.split("-")
    return parts[:1] if row.optional else [*parts, *(word.replace("/", "_") for word in row.meant_by)]


def waiting(experiment: Experiment, folder: Folder, wanted: Sequence[str] = ()) -> list[str]:
    """Rows that cannot start for want of others, when nothing is left to train."""
    return [
        f"{row.name} waits for {_missing(experiment, folder, row)}"
        for row in asked_for(experiment, folder, wanted)
        if any(_settings(experiment, folder, row, seed) is None for seed in range(row.seeds))
    ]


def _missing(experiment: Experiment, folder: Folder, row: Row) -> str:
    """Runs that it is made from, or else the grid that it is tuned by; what has diverged is waited for in vain."""
    if any(row.make(folder, seed) is None for seed in range(row.seeds)):
        names = row.waits_for.split(" and ")
        gone = [name for name in names if len(folder.scored(name)) < len(folder.seeds(name))]
        return row.waits_for + (f"; {' and '.join(gone)} has diverged" if gone else "")
    is_tried = len(folder.tried(str(row.tuned_as), experiment.grid)) == len(experiment.grid.cells)
    grid = "its grid" if row.tuned_as == row.name else f"the grid of {row.tuned_as}"
    return grid + ("; every cell of it has diverged" if is_tried else "")


def _jobs(experiment: Experiment, folder: Folder, rows: Sequence[Row]) -> list[Job]:
    blocks = [list(block) for _, block in groupby(rows, key=lambda row: row.block or row.name)]
    return list({job.path: job for block in blocks for job in _of_block(experiment, folder, block)}.values())


def _of_block(experiment: Experiment, folder: Folder, rows: Sequence[Row]) -> Iterator[Job]:
    """The grids first, and then the runs that are shown, seed by seed."""
    for row in rows:
        if row.tuned_as == row.name and len(experiment.grid.cells) > 1:
            yield from _search(experiment, folder, row)
    for seed in range(max(row.seeds for row in rows)):
        for row in rows:
            settings = _settings(experiment, folder, row, seed) if seed < row.seeds else None
            if settings is not None:
                path = folder.run(row.name, seed)
                yield Job(f"{row.name}, seed {seed}", path, replace(settings, seed=seed, out=str(path)))


def _search(experiment: Experiment, folder: Folder, row: Row) -> Iterator[Job]:
    made = row.make(folder, 0)
    if made is None:
        return
    changes: Any = dict(experiment.grid.shorter)
    for cell in experiment.grid.cells:
        path = folder.cell(row.name, cell)
        yield Job(f"{row.name}, {_words(cell)}", path, replace(cell.of(made), **changes, out=str(path)))


def _words(cell: Cell) -> str:
    return f"learning rate {cell.lr:g}, warm-up {cell.warm_up}"


def _settings(experiment: Experiment, folder: Folder, row: Row, seed: int) -> Settings | None:
    return folder.settings(row, seed, experiment.grid, experiment.judge)
