"""Whole runs at cells that the grid has not chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from partialsgd.lab.reproduce.budgets import named, with_the_flops_of
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.same import require_all

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce import elsewhere, jobs, tables
from partialsgd.lab.reproduce.numbers import found
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from tests.lab.reproduce.made import GRID, experiment, look, run, search, trio

OTHER = "core@lr0.2-warm5"


def test_a_row_is_trained_at_the_cell_that_is_named_and_by_default_at_none(tmp_path: Path) -> None:
    plan, folder = experiment(trio()), Folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    (job,) = (job for job in jobs.ready(plan, folder, [OTHER]) if job.settings.seed == 0)
    assert job.path == folder.run(OTHER, 0) and (job.settings.lr, job.settings.warm_up) == (0.2, 5)
    (chosen,) = (job for job in jobs.ready(plan, folder, ["core"]) if job.settings.seed == 0)
    assert (chosen.settings.lr, chosen.settings.warm_up) == (0.1, 0)
    assert not any("@" in str(job.path) for job in jobs.ready(plan, folder))


def test_what_there_is_not_is_refused_with_what_there_is(tmp_path: Path) -> None:
    plan, folder = experiment(trio()), Folder(tmp_path)
    with pytest.raises(WrongCall, match=r"--rows core@lr7: the grid has no cell lr7; it has lr0.1-warm0, lr0.2-warm5"):
        jobs.ready(plan, folder, ["core@lr7"])
    with pytest.raises(WrongCall, match=r"--rows cor@lr0.2-warm5: table9 has no row cor that is tuned"):
        jobs.ready(plan, folder, ["cor@lr0.2-warm5"])


def test_the_chosen_cell_is_not_trained_twice(tmp_path: Path) -> None:
    plan, folder = experiment(trio()), Folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    with pytest.raises(WrongCall, match=r"core@lr0.1-warm0: this is the cell that the grid has chosen; --rows core"):
        jobs.ready(plan, folder, ["core@lr0.1-warm0"])


def test_what_is_left_of_an_earlier_grid_stands_in_nobodys_way(tmp_path: Path) -> None:
    plan, folder = experiment(trio()), Folder(tmp_path)
    for name in ("core@lr7-warm0", f"{OTHER}.old", "gone@lr0.2-warm5"):
        run(folder.run(name, 0), [look(full=0.1)], {"full": 0.1})
    require_all(plan, folder)
    assert found(plan, folder)["elsewhere"] == []


def test_the_chosen_cell_stands_beside_the_others(tmp_path: Path) -> None:
    plan, folder = experiment(trio()), Folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    assert found(plan, folder)["elsewhere"] == []
    for name, cell, scores in (("core", GRID.cells[0], (0.7, 0.72)), (OTHER, GRID.cells[1], (0.8,))):
        for seed, value in enumerate(scores):
            settings = cell.of(Images(seed=seed, epochs=1))
            run(folder.run(name, seed), [look(full=value - 0.1)], {"full": value}, settings=settings)
    numbers = found(plan, folder)
    shown = next(table for table in tables.tables(numbers) if table.title.startswith("Whole runs"))
    assert shown.rows == (
        ("core", "0.1", "0", "full", "71.00 (1.41)", "0.6000", "✓", ""),
        ("core", "0.2", "5", "full", "80.00", "0.7000", "", "✓"),
    )


def test_the_better_of_whole_runs_is_shown_by_validation_with_the_first_seed(tmp_path: Path) -> None:
    plan, folder = experiment(trio()), Folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    whole = {"core": (GRID.cells[0], [(0.6, 0.9), (0.99, 0.9)]), OTHER: (GRID.cells[1], [(0.7, 0.8)])}
    for name, (cell, scores) in whole.items():
        for seed, (valid, test) in enumerate(scores):
            run(folder.run(name, seed), [look(full=valid)], {"full": test}, settings=cell.of(Images(seed=seed)))
    assert folder.shown("core", GRID, "accuracy") == OTHER
    line = found(plan, folder)["lines"][0]
    assert line["row"] == OTHER and line["scores"] == {"0": pytest.approx(80.0)}
    (pair,) = elsewhere.together(plan, folder)
    assert pair.alone == {"core": OTHER, "full": "full"}
    row = with_the_flops_of("joint", "core", "core-flops", 1, data=None, grid=GRID, judge="accuracy")
    run(folder.run("joint", 0), [look(core=0.1, full=0.1)], {"core": 0, "full": 0})
    settings = row.make(folder, 0)
    assert isinstance(settings, Images) and settings.lr == GRID.cells[1].lr
    assert named("core", "core", folder, GRID, "accuracy") == "core-flops-lr0.2-warm5"  # that of the other cell stays
    assert named("full-1_4", "full", folder, GRID, "accuracy") == "full-1_4-flops"


def test_without_whole_runs_elsewhere_a_row_shows_its_own(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.shown("core", GRID, "accuracy") == "core"
    folder.run(OTHER, 0).mkdir(parents=True)  # begun, and no more
    assert folder.shown("core", GRID, "accuracy") == "core"


def test_what_has_diverged_there_is_told(tmp_path: Path) -> None:
    plan, folder = experiment(trio()), Folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    settings = GRID.cells[1].of(Images(epochs=1))
    run(folder.run(OTHER, 0), [look(full=0.1)], None, settings=settings)
    shown = next(table for table in tables.tables(found(plan, folder)) if table.title.startswith("Whole runs"))
    assert shown.rows == (("core", "0.2", "5", "–", "–, 1 diverged", "diverged", "", "✓"),)


def test_a_run_of_another_cell_under_that_name_is_refused(tmp_path: Path) -> None:
    plan, folder = experiment(trio()), Folder(tmp_path)
    run(folder.run(OTHER, 0), [look(full=0.1)], {"full": 0.1}, settings=GRID.cells[0].of(Images(epochs=3)))
    assert elsewhere.named(folder) == [OTHER]
    with pytest.raises(AlreadyThere, match=r"lr 0.1 instead of 0.2"):
        require_all(plan, folder)
