"""Which runs are trained next: in order of value, after those that they need, and none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce import Request
from partialsgd.lab.reproduce.experiment import Cell, Row, always
from partialsgd.lab.reproduce.numbers import collect
from partialsgd.lab.reproduce.run_folder import RunFolder, equal_flops
from partialsgd.lab.reproduce.schedule import ready, requested_rows, require_all, waiting
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from tests.lab.reproduce.made import GRID, experiment, open_folder, opened, run, search, trio, valid


def names(folder: RunFolder, rows: list[Row], wanted: tuple[str, ...] = ()) -> list[str]:
    return [job.path.relative_to(folder.path).as_posix() for job in ready(experiment(rows), folder, wanted)]


def test_the_grids_come_first_every_row_has_the_same_and_their_runs_are_shorter(tmp_path: Path) -> None:
    expected = [f"grid/{row}/{cell.name}" for row in ("full", "core", "joint") for cell in GRID.cells]
    assert names(open_folder(tmp_path), trio()) == expected
    settings = ready(experiment(trio()), open_folder(tmp_path))[1].settings
    assert isinstance(settings, Images)
    assert (settings.epochs, settings.lr, settings.warm_up, settings.seed) == (1, 0.2, 5, 0)
    plan = experiment(trio(1), grid=type(GRID)(GRID.cells[1:]))
    one_cell = ready(plan, RunFolder(tmp_path, plan))  # nothing is searched
    assert [(job.label, job.settings.lr) for job in one_cell] == [
        (f"{row}, seed 0", 0.2) for row in ("full", "core", "joint")
    ]


def test_a_row_goes_on_when_its_own_grid_is_known_and_what_ended_is_not_trained_again(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    found = ready(experiment(trio()), folder)
    assert [job.label for job in found if job.path.parent.parent.name == "rows"] == ["core, seed 0", "core, seed 1"]
    second = next(job for job in found if job.label == "core, seed 1")
    assert isinstance(second.settings, Images)
    assert (second.settings.seed, second.settings.lr, second.settings.epochs) == (1, 0.1, 3)
    assert second.path == folder.run("core", 1) and second.arguments["settings"]["out"] == str(second.path)
    run(folder.run("core", 0), [valid(full=0.5)], {"full": 0.5})
    run(folder.run("core", 1), [valid(full=0.5)], None)
    assert not [name for name in names(folder, trio()) if "core" in name], "even if it diverged"


def test_rows_are_asked_for_by_a_part_of_their_name_or_a_pattern(tmp_path: Path) -> None:
    others = ("core-1_32-zero", "joint-1_32-zero", "core-1_4", "full-1_4-flops")
    rows = [Row("full", always(Images()), 1, "full", keywords=("1/4", "1/32", "zero"))]
    rows += [Row(name, always(Images()), 1, name) for name in others]
    rows += [Row(name, always(Images()), 1, name, optional=True) for name in ("distilled-core-1_32-zero", "half")]
    plan, folder = opened(experiment(rows), tmp_path)

    def request(*wanted: str) -> list[str]:
        return [row.name for row in requested_rows(plan, folder, wanted)]

    assert request("1/32") == ["full", "core-1_32-zero", "joint-1_32-zero"]  # which it belongs to
    assert request("core") == ["core-1_32-zero", "core-1_4"]
    assert request("core-1_*", "full") == ["full", "core-1_32-zero", "core-1_4"]
    assert request("full") == ["full"] and request("flops") == ["full-1_4-flops"]
    with pytest.raises(WrongCall, match="--rows cor: table9 has no such row; it has full, core-1_32-zero"):
        request("core", "cor")


def test_a_row_says_what_it_waits_for_and_what_of_it_has_diverged(tmp_path: Path) -> None:
    core = Row("core", always(Images()), 1, tuned_as="core")
    late = Row("late", lambda folder, seed: None, 1, None, waits_for="joint and core")
    tuned = Row("other-core", always(Images()), 1, tuned_as="core", waits_for="full")
    plan, folder = opened(experiment([core, late, tuned]), tmp_path)
    by_other = "other-core waits for the grid of core"
    assert waiting(plan, folder) == ["core waits for its grid", "late waits for joint and core", by_other]
    run(folder.run("core", 0), [valid(full=0.5)], None)
    for cell in plan.grid.cells:
        run(folder.cell("core", cell), [valid(full=0.5)], None)
    assert waiting(plan, folder) == [
        "core waits for its grid; every cell of it has diverged",
        "late waits for joint and core; core has diverged",
        f"{by_other}; every cell of it has diverged",
    ]


def test_rows_of_one_block_are_trained_seed_by_seed(tmp_path: Path) -> None:
    rows = [Row(name, always(Images()), seeds, None, block="b") for name, seeds in (("full", 2), ("core", 3))]
    later = Row("late", always(Images()), 2, None)
    assert names(open_folder(tmp_path), [*rows, later]) == [
        f"rows/{name}" for name in ("full/seed0", "core/seed0", "full/seed1", "core/seed1", "core/seed2")
    ] + ["rows/late/seed0", "rows/late/seed1"]


OTHER = "core@lr0.2-warm5"


def test_a_row_is_trained_at_a_cell_that_is_named_if_there_is_one_and_the_grid_chose_another(tmp_path: Path) -> None:
    plan, folder = opened(experiment(trio()), tmp_path)
    search(folder, "core", [0.5, 0.2])
    (job,) = (job for job in ready(plan, folder, [OTHER]) if job.settings.seed == 0)
    assert job.path == folder.run(OTHER, 0) and (job.settings.lr, job.settings.warm_up) == (0.2, 5)
    (chosen,) = (job for job in ready(plan, folder, ["core"]) if job.settings.seed == 0)
    assert (chosen.settings.lr, chosen.settings.warm_up) == (0.1, 0)
    assert not any("@" in str(job.path) for job in ready(plan, folder))
    for row, message in (
        ("core@lr7", r"the grid has no cell lr7; it has lr0.1-warm0, lr0.2-warm5"),
        ("cor@lr0.2-warm5", "table9 has no row cor that is tuned"),
        ("core@lr0.1-warm0", "this is the cell that the grid has chosen; --rows core"),
    ):
        with pytest.raises(WrongCall, match=f"--rows {row}: {message}"):
            ready(plan, folder, [row])


def test_what_is_left_of_an_earlier_grid_stands_in_nobodys_way_and_a_run_of_another_cell_is_refused(
    tmp_path: Path,
) -> None:
    plan, folder = opened(experiment(trio()), tmp_path)
    for name in ("core@lr7-warm0", f"{OTHER}.old", "gone@lr0.2-warm5"):
        run(folder.run(name, 0), [valid(full=0.1)], {"full": 0.1})
    require_all(plan, folder)
    assert collect(plan, folder)["other_cells"] == []
    run(folder.run(OTHER, 0), [valid(full=0.1)], {"full": 0.1}, settings=GRID.cells[0].apply(Images(epochs=3)))
    with pytest.raises(AlreadyThere, match=r"lr 0.1 instead of 0.2"):
        require_all(plan, open_folder(tmp_path))


def test_each_cell_experiment_scale_and_corpus_has_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Cell(1.5e-3, 60).name == "lr0.0015-warm60" != Cell(1.5e-3, 240).name
    for cell in (Cell(1.5e-3, 60), Cell(1e-5, 0), Cell(2.0, 4000)):
        assert Cell.from_name(cell.name) == cell
    for other in ("lr0.0015-warm60.old", "lr0.0015", "lr0.00150-warm60", "lr-warm", "notes"):
        assert Cell.from_name(other) is None
    monkeypatch.chdir(tmp_path)
    assert Request(data=".").default_out("table1a") == Path(f"runs/reproduce/table1a-laptop-{tmp_path.name}")
    assert Request().default_out("table1a") == Path("runs/reproduce/table1a-laptop")
    assert Request("paper", "/data/iwslt14").default_out("table1a") == Path("runs/reproduce/table1a-paper-iwslt14")


CHEAP = {"flops": {"full": 90.0}, "settings": Images(epochs=3, lr=0.07, data="where/it/was")}


def test_the_steps_cost_what_the_joint_run_cost(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    row = equal_flops("joint", "core", "core-flops", 1, "here")
    assert row.make(folder, 0) is None
    run(folder.run("joint", 0), [valid(core=0.1, full=0.1)] * 3, {"core": 0, "full": 0}, flops={"core": 45, "full": 90})
    assert row.make(folder, 0) is None
    run(folder.run("core", 0), [valid(full=0.1)] * 3, {"full": 0.1}, **CHEAP)
    settings = row.make(folder, 0)
    assert isinstance(settings, Images)
    assert settings.max_steps == 45  # 3 FLOPs a step, 135 in all
    assert settings.epochs == 5 and settings.lr == 0.07  # ten steps an epoch; the last one is not whole
    assert settings.data == "here"
    run(folder.run("joint", 1), [valid(full=0.1)], None)
    run(folder.run("core", 1), [valid(full=0.1)] * 3, {"full": 0.1}, **CHEAP)
    assert row.make(folder, 1) is None  # of each seed by itself, and a diverged run has no FLOPs to spend
