"""What is to be trained next: a pure function of the runs on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any, final

from partialsgd.recipes.settings import Settings
from partialsgd.reproduce.folder import Folder
from partialsgd.reproduce.plans import Cell, Experiment, Row


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
    return _jobs(experiment, folder, experiment.rows(folder))


def asked_for(experiment: Experiment, folder: Folder, wanted: Sequence[str]) -> list[Row]:
    """The rows with a name like one of the patterns, in which 1/32 is 1_32; by default all that are not optional."""
    patterns = [pattern.replace("/", "_") for pattern in wanted]
    rows = experiment.rows(folder)
    return [row for row in rows if (_is_like(row.name, patterns) if patterns else not row.optional)]


def waiting(experiment: Experiment, folder: Folder, wanted: Sequence[str] = ()) -> list[str]:
    """Rows that cannot start for want of others, when nothing is left to train."""
    return [
        f"{row.name} waits for {row.waits_for}"
        for row in asked_for(experiment, folder, wanted)
        if any(_settings(experiment, folder, row, seed) is None for seed in range(row.seeds))
    ]


def _jobs(experiment: Experiment, folder: Folder, rows: Sequence[Row]) -> list[Job]:
    blocks = [list(block) for _, block in groupby(rows, key=lambda row: row.block or row.name)]
    return list({job.path: job for block in blocks for job in _of_block(experiment, folder, block)}.values())


def _is_like(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) or pattern in name.split("-") for pattern in patterns)


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
