"""Table 3: two methods, both networks of each, and FLOPs as the paper counts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.jobs import ready
from partialsgd.lab.reproduce.plans import Asked

from partialsgd.lab.recipes.images.settings import PRESETS, Images
from partialsgd.lab.reproduce import experiment
from partialsgd.lab.training.errors import WrongCall
from tests.lab.reproduce.made import look, run, search


def test_both_methods_have_the_same_grid_and_nothing_else_differs(tmp_path: Path) -> None:
    jobs = ready(experiment("table3", Asked("laptop", "cifar")), Folder(tmp_path))
    found: dict[str, list[dict[str, object]]] = {}
    for job in jobs:
        assert isinstance(job.settings, Images)
        told = {**vars(job.settings), "out": None, "method": None}
        found.setdefault(job.settings.method, []).append(told)
    assert found["alternating"] == found["slimmable"] and len(found["slimmable"]) == 6
    assert {told["epochs"] for told in found["slimmable"]} == {2}  # shorter than the runs that are shown


def test_slimmable_also_runs_with_the_flops_of_alternating(tmp_path: Path) -> None:
    plan, folder = experiment("table3", Asked("laptop", "cifar", seeds=1)), Folder(tmp_path)
    for method, flops in (("alternating", 500.0), ("slimmable", 1000.0)):
        search(folder, method, [0.1, 0.2, 0.3, 0.2, 0.1, 0.1], plan.grid)
        looks = [look(core=0.5, full=0.6)] * 4
        run(folder.run(method, 0), looks, {"core": 0.5, "full": 0.6}, flops={"core": flops / 5, "full": 4 * flops / 5})
    (job,) = ready(plan, folder)
    assert job.label == "slimmable-flops, seed 0" and job.settings.max_steps == 20  # of 40


def test_at_the_papers_scale_it_is_resnet_18() -> None:
    plan, folder = experiment("table3", Asked("paper", "cifar", seeds=1)), Folder(Path("nowhere"))
    for row in plan.rows(folder)[:2]:
        settings = folder.settings(row, 0, plan.grid, plan.judge)
        assert settings == replace(PRESETS["cifar10"], data="cifar", method=row.name)
    assert [row.name for row in plan.rows(folder)[:2]] == ["alternating", "slimmable"]


def test_what_means_nothing_here_is_refused() -> None:
    with pytest.raises(WrongCall, match="--scale deep is for Transformers; table3 has none"):
        experiment("table3", Asked("deep"))
    with pytest.raises(WrongCall, match="--start svd: table3 has no use for it"):
        experiment("table3", Asked(start="svd"))
    with pytest.raises(WrongCall, match="--epochs 3: figure4 has no use for it"):
        experiment("figure4", Asked(epochs=3))
    with pytest.raises(WrongCall, match="--source de: figure3 has no use for it"):
        experiment("figure3", Asked(source="de"))


@pytest.mark.parametrize("name", ["table3", "table2a"])
def test_epochs_can_be_told_and_those_of_the_grid_stay(name: str, tmp_path: Path) -> None:
    usual, told = (ready(experiment(name, Asked(epochs=epochs)), Folder(tmp_path)) for epochs in (None, 3))
    assert usual == told  # all are cells of the grid
    rows = experiment(name, Asked(epochs=3)).rows(Folder(tmp_path))
    found = [made.epochs for row in rows if (made := row.make(Folder(tmp_path), 0)) is not None]
    assert found and set(found) == {3}


def test_without_data_it_is_digits(tmp_path: Path) -> None:
    settings = ready(experiment("table3", Asked()), Folder(tmp_path))[0].settings
    assert isinstance(settings, Images) and (settings.preset, settings.data) == ("digits", None)


def test_the_printed_flops_stand_on_each_line(tmp_path: Path) -> None:
    lines = experiment("table3", Asked()).lines(Folder(tmp_path))
    printed = {line.trained: line.printed_flops for line in lines if line.printed_flops}
    assert printed == {"alternating": 31.3e12, "slimmable": 62.7e12}
