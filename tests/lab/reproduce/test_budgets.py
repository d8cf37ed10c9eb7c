"""As many steps as another run's FLOPs pay for."""

from __future__ import annotations

from pathlib import Path

from partialsgd.lab.reproduce.budgets import with_the_flops_of
from partialsgd.lab.reproduce.folder import Folder

from partialsgd.lab.recipes.images.settings import Images
from tests.lab.reproduce.made import GRID, look, run

CHEAP = {"flops": {"full": 90.0}, "settings": Images(epochs=3, lr=0.07, data="where/it/was")}


def test_the_steps_cost_what_the_joint_run_cost(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    row = with_the_flops_of("joint", "core", "core-flops", 1, data="here", grid=GRID, judge="accuracy")
    assert row.make(folder, 0) is None
    run(folder.run("joint", 0), [look(core=0.1, full=0.1)] * 3, {"core": 0, "full": 0}, flops={"core": 45, "full": 90})
    assert row.make(folder, 0) is None
    run(folder.run("core", 0), [look(full=0.1)] * 3, {"full": 0.1}, **CHEAP)
    settings = row.make(folder, 0)
    assert isinstance(settings, Images)
    assert settings.max_steps == 45  # 3 FLOPs a step, 135 in all
    assert settings.epochs == 5 and settings.lr == 0.07  # ten steps an epoch; the last one is not whole
    assert settings.data == "here"
    assert row.make(folder, 1) is None  # of each seed by itself


def test_what_diverged_has_no_budget(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    run(folder.run("joint", 0), [look(full=0.1)], None)
    run(folder.run("core", 0), [look(full=0.1)] * 3, {"full": 0.1}, **CHEAP)
    assert (
        with_the_flops_of("joint", "core", "core-flops", 1, data=None, grid=GRID, judge="accuracy").make(folder, 0)
        is None
    )
