"""What is trained next: in order of value, after what it needs, and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.jobs import asked_for, ready, waiting
from partialsgd.lab.reproduce.plans import Row, always

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.training.errors import WrongCall
from tests.lab.reproduce.made import GRID, experiment, look, run, search, trio


def names(folder: Folder, rows: list[Row], wanted: tuple[str, ...] = ()) -> list[str]:
    return [job.path.relative_to(folder.path).as_posix() for job in ready(experiment(rows), folder, wanted)]


def test_the_grids_come_first_and_every_row_has_the_same(tmp_path: Path) -> None:
    cells = ["lr0.1-warm0", "lr0.2-warm5"]
    expected = [f"grid/{row}/{cell}" for row in ("full", "core", "joint") for cell in cells]
    assert names(Folder(tmp_path), trio()) == expected


def test_a_searching_run_is_shorter_and_has_its_cell(tmp_path: Path) -> None:
    settings = ready(experiment(trio()), Folder(tmp_path))[1].settings
    assert isinstance(settings, Images)
    assert (settings.epochs, settings.lr, settings.warm_up, settings.seed) == (1, 0.2, 5, 0)


def test_a_row_goes_on_when_its_own_grid_is_known(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    found = ready(experiment(trio()), folder)
    assert [job.label for job in found if job.path.parent.parent.name == "rows"] == ["core, seed 0", "core, seed 1"]
    second = next(job.settings for job in found if job.label == "core, seed 1")
    assert isinstance(second, Images)
    assert (second.seed, second.lr, second.epochs) == (1, 0.1, 3) and second.out == str(folder.run("core", 1))


def test_what_is_at_its_end_is_not_trained_again_even_if_it_diverged(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    run(folder.run("core", 0), [look(full=0.5)], {"full": 0.5})
    run(folder.run("core", 1), [look(full=0.5)], None)
    assert not [name for name in names(folder, trio()) if "core" in name]


def test_a_grid_of_one_cell_is_not_searched(tmp_path: Path) -> None:
    plan = experiment(trio(1), grid=type(GRID)(GRID.cells[1:]))
    found = ready(plan, Folder(tmp_path))
    assert [job.label for job in found] == ["full, seed 0", "core, seed 0", "joint, seed 0"]
    assert isinstance(found[0].settings, Images) and found[0].settings.lr == 0.2


def test_rows_are_asked_for_by_a_part_of_their_name_or_a_pattern(tmp_path: Path) -> None:
    others = ("core-1_32-zero", "joint-1_32-zero", "core-1_4", "full-1_4-flops")
    rows = [Row("full", always(Images()), 1, "full", meant_by=("1/4", "1/32", "zero"))]
    rows += [Row(name, always(Images()), 1, name) for name in others]
    rows += [Row(name, always(Images()), 1, name, optional=True) for name in ("distilled-core-1_32-zero", "half")]
    plan, folder = experiment(rows), Folder(tmp_path)

    def asked(*wanted: str) -> list[str]:
        return [row.name for row in asked_for(plan, folder, wanted)]

    assert asked("1/32") == ["full", "core-1_32-zero", "joint-1_32-zero"]  # which it belongs to
    assert asked("core") == ["core-1_32-zero", "core-1_4"]
    assert asked("core-1_*", "full") == ["full", "core-1_32-zero", "core-1_4"]
    assert asked("full") == ["full"] and asked("flops") == ["full-1_4-flops"]
    with pytest.raises(WrongCall, match="--rows cor: table9 has no such row; it has full, core-1_32-zero"):
        asked("core", "cor")


def test_optional_rows_are_trained_only_when_they_are_asked_for(tmp_path: Path) -> None:
    rows = [Row("full", always(Images()), 1, "full"), Row("distilled", always(Images()), 1, "full", optional=True)]
    plan, folder = experiment(rows), Folder(tmp_path)
    assert [row.name for row in asked_for(plan, folder, ())] == ["full"]
    assert [row.name for row in asked_for(plan, folder, ("distilled",))] == ["distilled"]


def test_what_has_diverged_is_waited_for_in_vain(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    plan = experiment([Row("late", lambda folder, seed: None, 1, None, waits_for="joint and core")])
    run(folder.run("core", 0), [look(full=0.5)], None)
    assert waiting(plan, folder) == ["late waits for joint and core; core has diverged"]


def test_a_grid_that_has_diverged_is_waited_for_in_vain(tmp_path: Path) -> None:
    plan, folder = experiment([Row("core", always(Images()), 1, tuned_as="core")]), Folder(tmp_path)
    assert waiting(plan, folder) == ["core waits for its grid"]
    for cell in plan.grid.cells:
        run(folder.cell("core", cell), [look(full=0.5)], None)
    assert waiting(plan, folder) == ["core waits for its grid; every cell of it has diverged"]


def test_a_row_that_is_tuned_by_another_waits_for_the_grid_of_that(tmp_path: Path) -> None:
    """Not for the teacher, which is there."""
    distilled = Row("distilled-core", always(Images()), 1, tuned_as="core", waits_for="full")
    assert waiting(experiment([distilled]), Folder(tmp_path)) == ["distilled-core waits for the grid of core"]


def test_a_row_that_cannot_start_says_what_it_waits_for(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    plan = experiment([Row("late", lambda folder, seed: None, 1, None, waits_for="joint and core")])
    assert ready(plan, folder) == []
    assert waiting(plan, folder) == ["late waits for joint and core"]


def test_rows_of_one_block_are_trained_seed_by_seed(tmp_path: Path) -> None:
    rows = [Row(name, always(Images()), seeds, None, block="b") for name, seeds in (("full", 2), ("core", 3))]
    later = Row("late", always(Images()), 2, None)
    assert names(Folder(tmp_path), [*rows, later]) == [
        f"rows/{name}" for name in ("full/seed0", "core/seed0", "full/seed1", "core/seed1", "core/seed2")
    ] + ["rows/late/seed0", "rows/late/seed1"]
