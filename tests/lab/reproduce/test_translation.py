"""Tables 1 and 2: which runs they take, in which order, and which line stands beside which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from partialsgd.lab.recipes.translation.settings import PRESETS, Translation
from partialsgd.lab.reproduce import Request, make_experiment
from partialsgd.lab.reproduce.experiment import Experiment
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.reproduce.schedule import ready, waiting
from tests.lab.reproduce.made import opened, run

SMALL = Request("laptop", seeds=2)


def names(plan: Experiment, folder: RunFolder) -> list[str]:
    return [row.name for row in plan.rows(folder)]


def settings(plan: Experiment, folder: RunFolder, name: str, seed: int = 0) -> Translation | None:
    row = next(row for row in plan.rows(folder) if row.name == name)
    made = row.make(folder, seed)
    assert made is None or isinstance(made, Translation)
    return made


def trained(folder: RunFolder, row: str, loss: float, seed: int = 0) -> Path:
    levels = ("core", "full") if row.startswith("joint") else ("full",)
    evaluations = [{level: {"loss": loss, "BLEU": 10.0} for level in levels}] * 2
    test = dict.fromkeys(levels, 10.0)
    return run(folder.run(row, seed), evaluations, test, settings=Translation(seed=seed), score="BLEU")


def test_the_smallest_ratio_and_the_starts_come_first_and_a_whole_table_before_a_second_seed(tmp_path: Path) -> None:
    plan, folder = opened(make_experiment("table1a", SMALL), tmp_path)
    first = ["full", *(f"{kind}-1_32-{start}" for start in ("zero", "svd", "matched") for kind in ("core", "joint"))]
    assert names(plan, folder)[:11] == [*first, "core-1_8", "joint-1_8", "core-1_4", "joint-1_4"]
    assert [row.seeds for row in plan.rows(folder)][:7] == [2, 2, 2, 1, 1, 1, 1]
    plan, folder = opened(replace(plan, grid=type(plan.grid)(plan.grid.cells[:1])), tmp_path)
    expected = [f"{row}, seed {seed}" for seed in (0, 1) for row in ("full", "core-1_32-zero", "joint-1_32-zero")]
    assert [job.label for job in ready(plan, folder)][:7] == [*expected, "core-1_32-svd, seed 0"]


def test_other_ratios_and_equal_flops_wait_for_the_best_start_and_take_it(tmp_path: Path) -> None:
    """A second worker would otherwise train them for a start that may not win."""
    plan, folder = opened(make_experiment("table1a", SMALL), tmp_path)
    for row in ("full", "core-1_32-zero", "core-1_32-svd"):
        trained(folder, row, 3.0)
    late = "core-1_4 waits for the starts at r = 1/32, or --start"
    assert waiting(plan, folder, ("core-1_32-svd", "core-1_4")) == ["core-1_32-svd waits for its grid", late]
    for start, loss in (("zero", 3.0), ("svd", 2.0), ("matched", 4.0)):
        assert settings(plan, folder, "joint-1_8") is None and settings(plan, folder, "core-1_32-flops") is None
        assert "not known yet, so zero is shown" in plan.choices(folder)[0]
        trained(folder, f"joint-1_32-{start}", loss)
    found = settings(plan, folder, "joint-1_8")
    assert found is not None and (found.init, found.ratio) == ("svd", ("1/8",))
    seeds = {row.name: row.seeds for row in plan.rows(folder)}
    assert (seeds["joint-1_32-zero"], seeds["joint-1_32-svd"], seeds["joint-1_32-matched"]) == (2, 2, 1)
    assert {line.row for line in plan.lines(folder) if line.group == "1/32"} >= {"core-1_32-svd", "joint-1_32-svd"}
    assert settings(plan, folder, "core-1_32-svd-flops") is not None
    assert plan.choices(folder)[0].endswith("for all rows: svd.")


@pytest.mark.parametrize("name", ["table1a", "table1b", "table2a", "table2b"])
def test_at_the_papers_scale_it_is_the_papers_setting_and_nothing_is_searched(name: str, tmp_path: Path) -> None:
    plan, folder = opened(make_experiment(name, Request("paper", "folder", seeds=1)), tmp_path)
    corpus = PRESETS["iwslt14" if name.endswith("a") else "wmt17"]
    jobs = ready(plan, folder)
    assert jobs[0].label == "full, seed 0" and all("seed 0" in job.label for job in jobs)
    nest, joint = ("low-rank", "joint-1_32-zero") if name.startswith("table1") else ("width", "joint-1_32")
    shared = {"data": "folder", "look_bleu": 500}
    whole = replace(corpus, **shared, nest="none", method="plain", out=jobs[0].settings.out)
    both = replace(corpus, **shared, nest=nest, ratio=("1/32",), init="zero")
    found = next(job.settings for job in jobs if job.path.parent.name == joint)
    assert jobs[0].settings == whole and found == replace(both, method="alternating", out=found.out)
    assert (whole.lr, whole.epochs) == ((5e-4, 30) if name.endswith("a") else (7e-4, 22))
    assert (whole.warm_up, whole.layers) == (4000, 6)


def test_depth_start_and_direction_can_be_told(tmp_path: Path) -> None:
    small, deep = (make_experiment("table1a", Request(layers=layers)) for layers in (None, 6))
    for plan, layers in ((small, 3), (deep, 6)):
        core = settings(plan, RunFolder(tmp_path, plan), "core-1_32-zero")
        assert core is not None and core.layers == layers
    assert [cell.lr for cell in deep.grid.cells] == [cell.lr / 2 for cell in small.grid.cells]
    figure, folder = opened(make_experiment("figure4", Request(layers=6)), tmp_path)
    assert {getattr(job.settings, "layers", None) for job in ready(figure, folder)} == {6}
    for name, direction in (("table1a", ("de", "en")), ("table1b", ("en", "de"))):
        found = settings(make_experiment(name, SMALL), folder, "full")
        assert found is not None and (found.source, found.target) == direction
    found = settings(make_experiment("table1a", replace(SMALL, source="fr", target="it")), folder, "full")
    assert found is not None and (found.source, found.target) == ("fr", "it")
    plan, folder = opened(make_experiment("table1a", replace(SMALL, start="matched")), tmp_path)
    found = settings(plan, folder, "joint-1_4")
    assert found is not None and found.init == "matched"
    assert not [name for name in names(plan, folder) if "svd" in name or "zero" in name]


def test_width_has_no_starts(tmp_path: Path) -> None:
    plan, folder = opened(make_experiment("table2b", SMALL), tmp_path)
    found = settings(plan, folder, "core-1_32")
    assert found is not None and (found.nest, found.alone) == ("width", "core")
    text = settings(plan, folder, "rank-1_64")
    assert text is not None and (text.nest, text.ratio, text.alone) == ("low-rank", ("1/64",), "core")
    assert not plan.starts


@pytest.mark.parametrize("name", ["table1a", "table1b", "table2a", "table2b"])
def test_every_line_is_of_a_row_that_there_is(name: str, tmp_path: Path) -> None:
    plan, folder = opened(make_experiment(name, SMALL), tmp_path)
    assert {line.row for line in plan.lines(folder)} <= set(names(plan, folder))
    for start in plan.starts:
        trained(folder, f"joint-1_32-{start}", 1.0)
    rows = set(names(plan, folder))
    for line in plan.lines(folder):
        assert line.row in rows and (line.equal_flops is None or line.equal_flops in rows)
    for each in plan.comparisons(folder):
        assert {each.joint, *each.alone.values()} <= rows
