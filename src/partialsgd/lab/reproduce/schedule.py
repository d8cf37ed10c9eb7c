"""Which runs an experiment trains next: a pure function of the runs on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

from partialsgd._util.files import read_json
from partialsgd.lab.reproduce.experiment import Cell, Experiment, MakeSettings, Row
from partialsgd.lab.reproduce.jobs import RunJob
from partialsgd.lab.reproduce.run_folder import AT, RunFolder, require_same_settings
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from partialsgd.lab.training.settings import Settings


def ready(experiment: Experiment, folder: RunFolder, words: Sequence[str] = ()) -> list[RunJob]:
    """The runs that can be trained now and are not finished, in order of value."""
    jobs = _jobs(experiment, folder, requested_rows(experiment, folder, words))
    return [job for job in jobs if folder.finished(job.path) is None]


def every_run(experiment: Experiment, folder: RunFolder) -> list[RunJob]:
    """All runs that are known by now, finished or not, of optional rows and other cells too."""
    rows = experiment.rows(folder)
    rows = [*rows, *rows_at_other_cells(experiment, rows, stored_other_cells(folder))]
    seeds = {row.name: max(row.seeds, folder.started_seeds(row.name)) for row in rows}
    return _jobs(experiment, folder, [replace(row, seeds=seeds[row.name]) for row in rows])


def require_all(experiment: Experiment, folder: RunFolder) -> None:
    """Raise if a run in the folder is not the experiment's: a table never mixes data, sizes or grids."""
    digests: dict[object, tuple[Path, str]] = {}
    for job in every_run(experiment, folder):
        if (run := folder.finished(job.path)) is not None:
            _ = (run.settings, run.evaluations)  # raises if a file is damaged
        if job.is_started:
            require_same_settings(job.path, job.settings)
            data = (read_json(job.path / "config.json").get("data") or "").split(" ")[0]
            group = None if job.settings.recipe == "translation" else job.settings.seed  # images are held out by seed
            first, digest = digests.setdefault(group, (job.path, data)) if data else (job.path, data)
            if digest != data:
                raise AlreadyThere(
                    f"{job.path} was trained on other data than {first}; give another --out, or remove it"
                )


def requested_rows(experiment: Experiment, folder: RunFolder, words: Sequence[str]) -> list[Row]:
    """The rows that `--rows` selects; without words all that are not optional. In a word 1/32 is written 1_32."""
    rows = experiment.rows(folder)
    if not words:
        return [row for row in rows if not row.optional]
    names = {word: word.replace("/", "_") for word in words}
    rows = [*rows, *_requested_other_cells(experiment, folder, rows, names.values())]
    selected = {word: {row.name for row in _matching(rows, name)} for word, name in names.items()}
    if unknown := [word for word, matches in selected.items() if not matches]:
        row_names = ", ".join(dict.fromkeys(row.name for row in rows))
        raise WrongCall(f"--rows {' '.join(unknown)}: {experiment.name} has no such row; it has {row_names}")
    return [row for row in rows if any(row.name in matches for matches in selected.values())]


def _matching(rows: Sequence[Row], word: str) -> list[Row]:
    """The row of that name; or all that match a pattern; or all with such a part, optional ones by the first part."""

    def parts(row: Row) -> list[str]:
        names = row.name.split("-")
        return names[:1] if row.optional else [*names, *(keyword.replace("/", "_") for keyword in row.keywords)]

    named = [row for row in rows if row.name == word]
    return named or [row for row in rows if fnmatch(row.name, word)] or [row for row in rows if word in parts(row)]


def waiting(experiment: Experiment, folder: RunFolder, words: Sequence[str] = ()) -> list[str]:
    """A sentence for each requested row that cannot start because other runs are missing."""
    return [
        f"{row.name} waits for {_missing(folder, row)}"
        for row in requested_rows(experiment, folder, words)
        if any(folder.settings(row, seed) is None for seed in range(row.seeds))
    ]


def _missing(folder: RunFolder, row: Row) -> str:
    """The runs that a row is made from, or else the grid that it is tuned by, and which of them diverged."""
    if any(row.make(folder, seed) is None for seed in range(row.seeds)):
        names = row.waits_for.split(" and ")
        diverged = [name for name in names if folder.diverged(name)]
        return row.waits_for + (f"; {' and '.join(diverged)} has diverged" if diverged else "")
    is_searched = len(folder.searched(str(row.tuned_as))) == len(folder.grid.cells)
    grid = "its grid" if row.tuned_as == row.name else f"the grid of {row.tuned_as}"
    return grid + ("; every cell of it has diverged" if is_searched else "")


def _jobs(experiment: Experiment, folder: RunFolder, rows: Sequence[Row]) -> list[RunJob]:
    blocks = (list(block) for _, block in groupby(rows, key=lambda row: row.block or row.name))
    return list({job.path: job for block in blocks for job in _jobs_of_block(experiment, folder, block)}.values())


def _jobs_of_block(experiment: Experiment, folder: RunFolder, rows: Sequence[Row]) -> Iterator[RunJob]:
    """The grids first, and then the runs that are shown, seed by seed."""
    for row in rows:
        is_searched = row.tuned_as == row.name and len(experiment.grid.cells) > 1
        if is_searched and (settings := row.make(folder, 0)) is not None:
            for cell in experiment.grid.cells:
                label = f"{row.name}, learning rate {cell.lr:g}, warm-up {cell.warm_up}"
                shorter = replace(cell.apply(settings), **experiment.grid.search)
                yield RunJob(label, folder.cell(row.name, cell), shorter)
    for seed in range(max(row.seeds for row in rows)):
        for row in rows:
            settings = folder.settings(row, seed) if seed < row.seeds else None
            if settings is not None:
                yield RunJob(f"{row.name}, seed {seed}", folder.run(row.name, seed), replace(settings, seed=seed))


# Rows at another cell than the one that the short search chose, trained to their end; the better one is shown.


def stored_other_cells(folder: RunFolder) -> list[str]:
    """The names of such rows in a folder, as ROW@CELL."""
    return sorted(path.name for path in folder.path.glob(f"rows/*{AT}*"))


def rows_at_other_cells(experiment: Experiment, rows: Sequence[Row], names: Iterable[str]) -> list[Row]:
    """A row for each name that means a tuned row and a cell of today's grid."""
    tuned, cells = _tuned(rows), {cell.name: cell for cell in experiment.grid.cells}
    parts = [(name, *name.split(AT, 1)) for name in names if AT in name]
    return [
        replace(
            tuned[row], name=name, make=at_cell(cells[cell], tuned[row].make), tuned_as=None, optional=True, block=name
        )
        for name, row, cell in parts
        if row in tuned and cell in cells
    ]


def _requested_other_cells(
    experiment: Experiment, folder: RunFolder, rows: Sequence[Row], words: Iterable[str]
) -> list[Row]:
    names = [word for word in words if AT in word]
    cells = {cell.name: cell for cell in experiment.grid.cells}
    for name in names:
        row, _, cell = name.partition(AT)
        if row not in _tuned(rows):
            raise WrongCall(f"--rows {name}: {experiment.name} has no row {row} that is tuned")
        if cell not in cells:
            raise WrongCall(f"--rows {name}: the grid has no cell {cell}; it has {', '.join(cells)}")
        if folder.chosen_cell(row) == cells[cell]:
            raise WrongCall(f"--rows {name}: this is the cell that the grid has chosen; --rows {row} trains it")
    return rows_at_other_cells(experiment, rows, names)


def _tuned(rows: Sequence[Row]) -> dict[str, Row]:
    return {row.name: row for row in rows if row.tuned_as == row.name}


def at_cell(cell: Cell, make: MakeSettings) -> MakeSettings:
    """Make the same settings with the learning rate and the warm-up of a cell."""

    def make_at_cell(folder: RunFolder, seed: int) -> Settings | None:
        settings = make(folder, seed)
        return None if settings is None else cell.apply(settings)

    return make_at_cell
