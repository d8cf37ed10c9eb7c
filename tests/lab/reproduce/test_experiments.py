"""Table 3, the figures, the printed numbers, and sentences on choices that are true of the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from partialsgd.lab.recipes import build
from partialsgd.lab.recipes.images.settings import PRESETS as IMAGES
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import PRESETS, Translation
from partialsgd.lab.reproduce import Request, Scale, make_experiment
from partialsgd.lab.reproduce.paper import FULL_ALONE, LOW_RANK_64, TABLE_3, TABLES
from partialsgd.lab.reproduce.schedule import ready
from partialsgd.lab.training.errors import WrongCall
from tests.lab.reproduce.made import open_folder, opened, run, search, valid


def test_the_papers_scale_is_resnet_18_and_slimmable_also_runs_with_the_flops_of_alternating(
    tmp_path: Path,
) -> None:
    plan, folder = opened(make_experiment("table3", Request("paper", "cifar", seeds=1)), Path("nowhere"))
    for row, method in zip(plan.rows(folder)[:2], ("alternating", "slimmable"), strict=True):
        assert folder.settings(row, 0) == replace(IMAGES["cifar10"], data="cifar", method=method)
    plan, folder = opened(make_experiment("table3", Request("laptop", "cifar", seeds=1)), tmp_path)
    for method, flops in (("alternating", 500.0), ("slimmable", 1000.0)):
        search(folder, method, [0.1, 0.2, 0.3, 0.2, 0.1, 0.1], plan.grid)
        evaluations = [valid(core=0.5, full=0.6)] * 4
        costs = {"core": flops / 5, "full": 4 * flops / 5}
        run(folder.run(method, 0), evaluations, {"core": 0.5, "full": 0.6}, flops=costs)
    (job,) = ready(plan, folder)
    assert job.label == "slimmable-flops, seed 0" and job.settings.max_steps == 20  # of 40


@pytest.mark.parametrize(
    ("name", "request_", "option"),
    [
        ("table3", Request(layers=6), "--layers 6"),
        ("table3", Request(start="svd"), "--start svd"),
        ("figure4", Request(epochs=3), "--epochs 3"),
        ("figure3", Request(source="de"), "--source de"),
        ("figure2", Request(epochs=3), "--epochs 3"),
        ("table2a", Request(start="svd"), "--start svd"),
    ],
)
def test_options_without_effect_are_refused(name: str, request_: Request, option: str) -> None:
    with pytest.raises(WrongCall, match=f"{option} has no effect on {name}; leave it out"):
        make_experiment(name, request_)


@pytest.mark.parametrize("name", ["table3", "table2a"])
def test_epochs_can_be_told_and_those_of_the_grid_stay(name: str, tmp_path: Path) -> None:
    usual, told = (ready(make_experiment(name, Request(epochs=epochs)), open_folder(tmp_path)) for epochs in (None, 3))
    assert usual == told  # all are cells of the grid
    rows = make_experiment(name, Request(epochs=3)).rows(open_folder(tmp_path))
    found = [made.epochs for row in rows if (made := row.make(open_folder(tmp_path), 0)) is not None]
    assert found and set(found) == {3}


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("name", ["figure2", "figure3", "figure4"])
def test_every_run_is_measured_and_every_curve_is_a_row(name: str, scale: Scale, tmp_path: Path) -> None:
    plan = make_experiment(name, Request(scale, "folder" if scale == "paper" else None, seeds=2))
    jobs = ready(plan, open_folder(tmp_path))
    assert all(job.settings.measure_every for job in jobs)
    assert plan.figure is not None and f"figure{plan.figure.number}" == name
    assert {job.path.parent.name for job in jobs} == set(plan.figure.curves.values())
    assert [job.settings.seed for job in jobs] == sorted(job.settings.seed for job in jobs)


def test_what_is_not_trained_is_measured_all_the_same(tmp_path: Path) -> None:
    jobs = ready(make_experiment("figure3", Request(seeds=1)), open_folder(tmp_path))
    found = {job.path.parent.name: job.settings for job in jobs}
    assert found["without"].probe == found["dropout"].method and found["without"].method == "plain"
    for settings in found.values():
        assert isinstance(settings, Images) and (settings.norms, settings.nest) == ("none", "none")
    assert ready(make_experiment("figure2", Request(seeds=1)), open_folder(tmp_path)) == jobs[:1], "the same run"
    jobs = ready(make_experiment("figure4", Request("paper", "iwslt", seeds=1)), open_folder(tmp_path))
    for job in jobs:
        assert isinstance(job.settings, Translation)
        assert (job.settings.nest, job.settings.ratio, job.settings.probe) == ("width", ("1/2",), "only('core')")
        assert job.settings.d_model == PRESETS["iwslt14"].d_model
    assert [job.settings.method for job in jobs] == ["alternating", "plain"]


def test_digits_have_epochs_enough_for_the_steps_that_are_told(tmp_path: Path) -> None:
    plan, folder = opened(make_experiment("figure3", Request("laptop", seeds=1)), tmp_path)
    settings = plan.rows(folder)[0].make(folder, 0)
    assert settings is not None and settings.max_steps is not None
    assert len(build(settings).batches) * settings.epochs >= settings.max_steps


def test_every_number_is_the_papers() -> None:
    typed = """
        table1a 1/4   28.96 (0.04)   29.15 (0.63)   31.34 (0.36)
        table1a 1/8   27.87 (0.11)   28.20 (0.48)   31.62 (0.13)
        table1a 1/32  17.95 (3.65)   24.03 (0.77)   31.20 (0.58)
        table1b 1/32  23.20 (0.09)   23.18 (0.12)   25.50 (0.22)
        table2a 1/4   31.29 (0.27)   31.59 (0.18)   31.95 (0.35)
        table2a 1/32  23.58 (0.58)   23.84 (0.25)   30.41 (0.40)
        table2b 1/32  20.47 (0.34)   20.08 (0.40)   25.46 (0.17)
    """
    found = [
        " ".join((table, ratio, *map(str, (trio.core_alone, trio.core, trio.full))))
        for table, trios in TABLES.items()
        for ratio, trio in trios.items()
    ]
    assert found == [" ".join(line.split()) for line in typed.split("\n") if line.strip()]
    assert [str(printed) for printed in FULL_ALONE.values()] == ["32.48 (0.32)", "26.41 (0.14)"]
    assert str(LOW_RANK_64) == "22.10"
    assert {method: (str(each.core), str(each.full), each.epoch_flops) for method, each in TABLE_3.items()} == {
        "alternating": ("93.94", "95.05", 31.3e12),
        "slimmable": ("93.99", "94.72", 62.7e12),
    }
