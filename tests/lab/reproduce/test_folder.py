"""What the files of runs say: looks, merits, and which cell of a grid is best."""

from __future__ import annotations

from pathlib import Path

import pytest
from partialsgd.lab.reproduce.folder import Ended, Folder, flops_of
from partialsgd.lab.reproduce.plans import Cell, Row, always

from partialsgd.lab.recipes.images.settings import Images
from tests.lab.reproduce.made import GRID, look, run, search


def test_looks_are_the_evaluations_in_order(tmp_path: Path) -> None:
    path = run(tmp_path / "r", [look(core=0.1, full=0.2), look(core=0.3, full=0.4)], {"core": 0.3, "full": 0.4})
    first, second = Ended(path).looks
    assert (first.steps, first.epoch, second.steps, second.epoch) == (10, 1.0, 20, 2.0)
    assert second.levels == {"core": {"accuracy": 0.3, "loss": 0.7}, "full": {"accuracy": 0.4, "loss": 0.6}}


def test_a_level_may_have_a_slash_in_its_name(tmp_path: Path) -> None:
    path = run(tmp_path / "r", [{"1/4": {"accuracy": 0.5}}], {"1/4": 0.5})
    assert Ended(path).looks[0].levels == {"1/4": {"accuracy": 0.5}}


def test_a_merit_is_the_best_mean_and_of_a_loss_the_smallest(tmp_path: Path) -> None:
    looks = [look(core=0.2, full=0.4), look(core=0.5, full=0.7), look(core=0.1, full=0.9)]
    ended = Ended(run(tmp_path / "r", looks, {"core": 0.5, "full": 0.7}))
    assert ended.merit("accuracy") == pytest.approx(0.6)
    assert ended.merit("loss") == pytest.approx(-0.4)


def test_levels_that_are_not_trained_do_not_count(tmp_path: Path) -> None:
    flops = {"core": 1.0, "full": 0.0}
    ended = Ended(run(tmp_path / "r", [look(core=0.2, full=0.9)], {"core": 0.2, "full": 0.9}, flops=flops))
    assert ended.merit("accuracy") == pytest.approx(0.2)


def test_what_diverged_is_at_its_end_and_the_worst(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    run(folder.run("core", 0), [look(full=0.9)], None)
    (ended,) = folder.seeds("core")
    assert ended.merit("accuracy") == float("-inf") and folder.scored("core") == []


def test_a_look_that_is_nan_never_wins(tmp_path: Path) -> None:
    ended = Ended(run(tmp_path / "r", [look(full=0.3), look(full=float("nan"))], {"full": 0.3}))
    assert ended.merit("accuracy") == pytest.approx(0.3)


def test_a_cell_is_chosen_once_all_are_known(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    run(folder.cell("core", GRID.cells[0]), [look(full=0.9)], {"full": 0.9})
    assert folder.chosen("core", GRID, "accuracy") is None
    run(folder.cell("core", GRID.cells[1]), [look(full=0.95)], {"full": 0.1})  # the test data do not choose
    assert folder.chosen("core", GRID, "accuracy") == GRID.cells[1]


def test_where_every_cell_has_diverged_none_is_chosen(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for cell in GRID.cells:
        run(folder.cell("core", cell), [look(full=0.9)], None)
    assert folder.chosen("core", GRID, "accuracy") is None


def test_a_copy_of_a_cell_is_no_cell(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    for name in ("lr0.1-warm0.old", "lr0.7-warm0"):
        run(folder.path / "grid" / "core" / name, [look(full=0.9)], {"full": 0.9})
    assert list(folder.tried_before("core", GRID)) == [Cell(0.7, 0)]


def test_a_row_takes_the_cell_that_its_grid_chose(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    row = Row("other", always(Images(epochs=7)), 1, tuned_as="core")
    assert folder.settings(row, 0, GRID, "accuracy") is None
    search(folder, "core", [0.2, 0.8])
    settings = folder.settings(row, 0, GRID, "accuracy")
    assert isinstance(settings, Images)
    assert (settings.lr, settings.warm_up, settings.epochs) == (0.2, 5, 7)


def test_seeds_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for seed in (10, 2, 0):
        run(folder.run("core", seed), [look(full=seed / 100)], {"full": seed / 100})
    (tmp_path / "rows" / "core" / "seed1.old").mkdir()  # somebody's
    assert [each.path.name for each in folder.seeds("core")] == ["seed0", "seed2", "seed10"]


def test_flops_are_those_of_all_levels(tmp_path: Path) -> None:
    path = run(tmp_path / "r", [look(core=0.1, full=0.1)], {"core": 0.1, "full": 0.1}, flops={"core": 3, "full": 4})
    summary = Ended(path).summary
    assert summary is not None and flops_of(summary) == 7.0
