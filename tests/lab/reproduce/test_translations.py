"""Tables 1 and 2: which runs they take, in which order, and what stands beside what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.jobs import asked_for, ready, waiting
from partialsgd.lab.reproduce.plans import Asked, Experiment

from partialsgd.lab.recipes.translation.settings import PRESETS, Translation
from partialsgd.lab.reproduce import experiment
from partialsgd.lab.training.errors import WrongCall
from tests.lab.reproduce.made import run, search

SMALL = Asked("laptop", seeds=2)


def names(plan: Experiment, folder: Folder) -> list[str]:
    return [row.name for row in plan.rows(folder)]


def settings(plan: Experiment, folder: Folder, name: str, seed: int = 0) -> Translation | None:
    row = next(row for row in plan.rows(folder) if row.name == name)
    made = row.make(folder, seed)
    assert made is None or isinstance(made, Translation)
    return made


def trained(folder: Folder, row: str, loss: float, seed: int = 0) -> Path:
    levels = ("core", "full") if row.startswith("joint") else ("full",)
    looks = [{level: {"loss": loss, "BLEU": 10.0} for level in levels}] * 2
    return run(folder.run(row, seed), looks, dict.fromkeys(levels, 10.0), settings=Translation(seed=seed), score="BLEU")


def test_a_core_alone_is_taken_out_of_the_same_family_and_trained_plainly(tmp_path: Path) -> None:
    plan, folder = experiment("table1a", SMALL), Folder(tmp_path)
    joint, core = (settings(plan, folder, f"{kind}-1_32-svd") for kind in ("joint", "core"))
    assert joint is not None and (joint.nest, joint.ratio, joint.init, joint.method) == (
        "low-rank",
        ("1/32",),
        "svd",
        "alternating",
    )
    assert core == replace(joint, alone="core", method="plain")
    whole = settings(plan, folder, "full")
    assert whole is not None and (whole.nest, whole.method, whole.epochs) == ("none", "plain", joint.epochs)


def test_the_smallest_ratio_and_the_starts_come_first(tmp_path: Path) -> None:
    plan, folder = experiment("table1a", SMALL), Folder(tmp_path)
    first = ["full", *(f"{kind}-1_32-{start}" for start in ("zero", "svd", "matched") for kind in ("core", "joint"))]
    assert names(plan, folder)[:7] == first
    assert [row.seeds for row in plan.rows(folder)][:7] == [2, 2, 2, 1, 1, 1, 1]
    assert names(plan, folder)[7:11] == ["core-1_8", "joint-1_8", "core-1_4", "joint-1_4"]


def test_a_whole_table_of_one_ratio_is_there_before_a_second_seed(tmp_path: Path) -> None:
    plan, folder = experiment("table1a", SMALL), Folder(tmp_path)
    plan = replace(plan, grid=type(plan.grid)(plan.grid.cells[:1]))
    first = [job.label for job in ready(plan, folder)][:7]
    rows = ("full", "core-1_32-zero", "joint-1_32-zero")
    assert first == [f"{row}, seed {seed}" for seed in (0, 1) for row in rows] + ["core-1_32-svd, seed 0"]


def test_the_other_ratios_wait_for_the_best_start_and_take_it(tmp_path: Path) -> None:
    plan, folder = experiment("table1a", SMALL), Folder(tmp_path)
    assert settings(plan, folder, "joint-1_8") is None
    for start, loss in (("zero", 3.0), ("svd", 2.0), ("matched", 4.0)):
        assert settings(plan, folder, "joint-1_8") is None
        trained(folder, f"joint-1_32-{start}", loss)
    found = settings(plan, folder, "joint-1_8")
    assert found is not None and (found.init, found.ratio) == ("svd", ("1/8",))
    seeds = {row.name: row.seeds for row in plan.rows(folder)}
    assert (seeds["joint-1_32-zero"], seeds["joint-1_32-svd"], seeds["joint-1_32-matched"]) == (2, 2, 1)
    assert {line.row for line in plan.lines(folder) if line.group == "1/32"} >= {"core-1_32-svd", "joint-1_32-svd"}


def test_equal_flops_wait_until_the_start_is_chosen(tmp_path: Path) -> None:
    """A second worker would otherwise train them for a start that may not win."""
    plan, folder = experiment("table1a", SMALL), Folder(tmp_path)
    for row in ("full", "core-1_32-zero", "joint-1_32-zero"):
        trained(folder, row, 3.0)
    assert settings(plan, folder, "core-1_32-flops") is None
    assert "not known yet, so zero is shown" in plan.choices(folder)[0]
    for start in ("svd", "matched"):
        trained(folder, f"joint-1_32-{start}", 4.0)
    assert settings(plan, folder, "core-1_32-zero-flops") is not None
    assert plan.choices(folder)[0].endswith("for all rows: zero.")


def test_choices_are_those_of_the_table(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    rank, told, width = (
        " ".join(experiment(name, asked).choices(folder))
        for name, asked in (("table1a", SMALL), ("table1a", replace(SMALL, start="svd")), ("table2a", SMALL))
    )
    assert "svd, matched are tried" in rank and "tried" not in told and "as told, 'svd'" in told
    assert "U, V" not in width and "query and key" in width and "query and key" not in rank


def test_a_teacher_that_has_diverged_teaches_nobody(tmp_path: Path) -> None:
    plan, folder = experiment("table1a", replace(SMALL, start="zero")), Folder(tmp_path)
    run(folder.run("full", 0), [{"full": {"loss": 1.0}}], None, settings=Translation())
    assert settings(plan, folder, "distilled-core-1_32-zero") is None


def test_a_start_that_is_told_is_not_searched_for(tmp_path: Path) -> None:
    plan, folder = experiment("table1a", replace(SMALL, start="matched")), Folder(tmp_path)
    found = settings(plan, folder, "joint-1_4")
    assert found is not None and found.init == "matched"
    assert not [name for name in names(plan, folder) if "svd" in name or "zero" in name]


def test_every_tuned_row_has_the_same_six_cells(tmp_path: Path) -> None:
    plan, folder = experiment("table2a", SMALL), Folder(tmp_path)
    cells: dict[str, set[tuple[float, int, int]]] = {}
    for job in ready(plan, folder):
        assert isinstance(job.settings, Translation)
        told = (job.settings.lr, job.settings.warm_up, job.settings.epochs)
        cells.setdefault(job.path.parent.name, set()).add(told)
    assert set(cells) == {"full", "core-1_4", "joint-1_4", "core-1_32", "joint-1_32"}
    assert len({frozenset(each) for each in cells.values()}) == 1 and len(cells["full"]) == 6


@pytest.mark.parametrize("name", ["table1a", "table1b", "table2a", "table2b"])
def test_at_the_papers_scale_it_is_the_papers_setting_and_nothing_is_searched(name: str, tmp_path: Path) -> None:
    plan, folder = experiment(name, Asked("paper", "folder", seeds=1)), Folder(tmp_path)
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


def test_at_the_scale_deep_only_the_depth_is_another(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    small, deep = (
        settings(experiment("table1a", Asked(scale)), folder, "core-1_32-zero") for scale in ("laptop", "deep")
    )
    assert small is not None and deep == replace(small, layers=6)


def test_directions_are_the_papers_or_as_told(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for name, direction in (("table1a", ("de", "en")), ("table1b", ("en", "de"))):
        found = settings(experiment(name, SMALL), folder, "full")
        assert found is not None and (found.source, found.target) == direction
    found = settings(experiment("table1a", replace(SMALL, source="fr", target="it")), folder, "full")
    assert found is not None and (found.source, found.target) == ("fr", "it")


def test_width_has_no_starts(tmp_path: Path) -> None:
    plan, folder = experiment("table2b", SMALL), Folder(tmp_path)
    found = settings(plan, folder, "core-1_32")
    assert found is not None and (found.nest, found.alone) == ("width", "core")
    text = settings(plan, folder, "rank-1_64")
    assert text is not None and (text.nest, text.ratio, text.alone) == ("low-rank", ("1/64",), "core")
    assert not plan.starts
    with pytest.raises(WrongCall, match="--start svd: table2a has no use for it"):
        experiment("table2a", replace(SMALL, start="svd"))


def test_a_row_says_what_it_waits_for(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert waiting(experiment("table2a", SMALL), folder, ("full", "core-1_4")) == [
        "full waits for its grid",
        "core-1_4 waits for its grid",
    ]
    told = waiting(experiment("table1a", SMALL), folder, ("core-1_32-svd", "core-1_4"))
    assert told == ["core-1_32-svd waits for its grid", "core-1_4 waits for the starts at r = 1/32, or --start"]


def test_nothing_is_trained_instead_of_a_core_that_is_not_known_yet(tmp_path: Path) -> None:
    """It would have the name of another start, once the best one is known."""
    plan, folder = experiment("table1a", replace(SMALL, seeds=1)), Folder(tmp_path)
    for name in ("full", "half"):
        trained(folder, name, 1.0)
        search(folder, name, [1.0] * 6, plan.grid)
    search(folder, "core-1_32-zero", [1.0] * 6, plan.grid)
    assert ready(plan, folder, ("distilled", "warm")) == []
    told = waiting(plan, folder, ("distilled", "warm"))
    assert len(told) == 6 and all(line.endswith("waits for the starts at r = 1/32, or --start") for line in told)


@pytest.mark.parametrize("name", ["table1a", "table1b", "table2a", "table2b"])
def test_every_line_is_of_a_row_that_there_is(name: str, tmp_path: Path) -> None:
    plan, folder = experiment(name, SMALL), Folder(tmp_path)
    assert {line.row for line in plan.lines(folder)} <= set(names(plan, folder))
    for start in plan.starts:
        trained(folder, f"joint-1_32-{start}", 1.0)
    rows = set(names(plan, folder))
    for line in plan.lines(folder):
        assert line.row in rows and (line.equal_flops is None or line.equal_flops in rows)
    for each in plan.together(folder):
        assert {each.joint, *each.alone.values()} <= rows


def test_what_a_user_would_do_instead_is_there_at_every_ratio(tmp_path: Path) -> None:
    plan, folder = experiment("table1a", replace(SMALL, start="zero")), Folder(tmp_path)
    trained(folder, "full", 1.0)
    trained(folder, "half", 1.0)
    for ratio in ("1_4", "1_8"):
        distilled, warm = (settings(plan, folder, f"{kind}-core-{ratio}") for kind in ("distilled", "warm"))
        assert distilled is not None and warm is not None
        assert distilled.ratio == warm.ratio == (ratio.replace("_", "/"),)
        assert (distilled.init, warm.init) == ("zero", "svd")
    narrow = experiment("table2a", SMALL)
    distilled = settings(narrow, folder, "distilled-core-1_4")
    assert distilled is not None and (distilled.nest, distilled.alone) == ("width", "core")
    assert not [name for name in names(narrow, folder) if "warm" in name or name == "half"]  # width has no SVD


def test_what_a_user_would_do_instead_names_the_finished_run(tmp_path: Path) -> None:
    plan, folder = experiment("table1a", replace(SMALL, start="zero")), Folder(tmp_path)
    assert settings(plan, folder, "distilled-core-1_32-zero", 1) is None
    full = trained(folder, "full", 1.0, seed=1)
    distilled = settings(plan, folder, "distilled-core-1_32-zero", 1)
    assert distilled is not None and distilled.teacher == str(full.resolve())
    assert (distilled.alone, distilled.init, distilled.method) == ("core", "zero", "plain")
    half = trained(folder, "half", 1.0, seed=1)
    warm, before = settings(plan, folder, "warm-core-1_32-zero", 1), settings(plan, folder, "half", 1)
    assert warm is not None and before is not None and distilled is not None
    assert warm.start == str(half.resolve()) and (warm.alone, warm.init) == ("core", "svd")
    assert warm.epochs + before.epochs == distilled.epochs  # as many epochs in all as the others


def test_the_whole_network_belongs_to_every_ratio(tmp_path: Path) -> None:
    for name in ("table1a", "table2a"):
        plan = experiment(name, replace(SMALL, start="zero") if name == "table1a" else SMALL)
        for ratio in ("1/4", "1/32"):
            assert "full" in [row.name for row in asked_for(plan, Folder(tmp_path), (ratio,))]
