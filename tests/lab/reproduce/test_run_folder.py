"""Which runs a folder has, what their files say, and which cell of a grid is best."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce import Request, make_experiment
from partialsgd.lab.reproduce.experiment import Cell, Row, always
from partialsgd.lab.reproduce.run_folder import FinishedRun, require_same_settings
from partialsgd.lab.reproduce.schedule import ready, require_all
from partialsgd.lab.training.errors import AlreadyThere
from partialsgd.lab.training.settings import Settings
from tests.lab.reproduce.made import GRID, open_folder, opened, run, search, valid

HERE = Images(data="here/cifar", threads=1)
WHOLE = replace(HERE, nest="none", method="plain")
TAUGHT = Translation(teacher="here/rows/full/seed0")
REQUEST = Request("laptop", "here/cifar", seeds=1)
BOTH: Any = ([valid(core=0.1, full=0.1)], {"core": 0.1, "full": 0.1})


def test_evaluations_are_in_order_and_the_selection_score_is_the_best_mean_over_trained_levels(tmp_path: Path) -> None:
    evaluations = [valid(core=0.2, full=0.4), valid(core=0.5, full=0.7), valid(core=0.1, full=0.9)]
    ended = FinishedRun(run(tmp_path / "r", evaluations, {"core": 0.5, "full": 0.7}))
    first, second, _ = ended.evaluations
    assert (first.steps, first.epoch, second.steps, second.epoch) == (10, 1.0, 20, 2.0)
    assert second.levels == {"core": {"accuracy": 0.5, "loss": 0.5}, "full": {"accuracy": 0.7, "loss": 1 - 0.7}}
    assert ended.selection_score("accuracy") == pytest.approx(0.6)
    assert ended.selection_score("loss") == pytest.approx(-0.4)
    only_core = {"test": {"core": 0.2, "full": 0.9}, "flops": {"core": 1.0, "full": 0.0}}
    ended = FinishedRun(run(tmp_path / "core", [valid(core=0.2, full=0.9)], **only_core))
    assert ended.selection_score("accuracy") == pytest.approx(0.2)
    ended = FinishedRun(run(tmp_path / "nan", [valid(full=0.3), valid(full=float("nan"))], {"full": 0.3}))
    assert ended.selection_score("accuracy") == pytest.approx(0.3), "an evaluation that is NaN never wins"


def test_a_cell_is_chosen_once_all_are_known_and_taken_by_rows_that_are_tuned_by_it(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    row = Row("other", always(Images(epochs=7)), 1, tuned_as="core")
    run(folder.cell("core", GRID.cells[1]), [valid(full=0.8)], {"full": 0.1})
    assert folder.chosen_cell("core") is None and folder.settings(row, 0) is None
    run(folder.cell("core", GRID.cells[0]), [valid(full=0.2)], {"full": 0.9})
    assert folder.chosen_cell("core") == GRID.cells[1], "the test data do not choose"
    settings = folder.settings(row, 0)
    assert isinstance(settings, Images) and (settings.lr, settings.warm_up, settings.epochs) == (0.2, 5, 7)
    for cell in GRID.cells:
        run(folder.cell("full", cell), [valid(full=0.9)], None)
    assert folder.chosen_cell("full") is None, "every cell has diverged"


def test_copies_are_no_runs_and_seeds_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    for name in ("lr0.1-warm0.old", "lr0.7-warm0"):
        run(folder.path / "grid" / "core" / name, [valid(full=0.9)], {"full": 0.9})
    assert list(folder.searched_before("core")) == [Cell(0.7, 0)]
    for seed in (10, 2, 0):  # the first has diverged
        run(folder.run("core", seed), [valid(full=0.9)], {"full": 0.9} if seed < 10 else None)
    (tmp_path / "rows" / "core" / "seed1.old").mkdir()  # somebody's
    assert [each.path.name for each in folder.seeds("core")] == ["seed0", "seed2", "seed10"]
    assert [each.path.name for each, _ in folder.scored("core")] == ["seed0", "seed2"]
    assert folder.seeds("core")[2].selection_score("accuracy") == float("-inf")


@pytest.mark.parametrize(
    ("made", "asked", "message"),
    [
        (HERE, replace(HERE, out="elsewhere", threads=2, data="/moved/to/cifar"), None),
        (TAUGHT, replace(TAUGHT, teacher="/moved/rows/full/seed0"), None),
        (WHOLE, replace(WHOLE, ratio=("1/8",)), None),  # a network without levels has no ratio
        (HERE, replace(HERE, lr=0.2, seed=3), r"other settings \(seed 0 instead of 3, lr 0\.05 instead of 0\.2\)"),
        (HERE, replace(HERE, data="here/digits"), "data 'here/cifar' instead of 'here/digits'"),
        (HERE, replace(HERE, data=None), "data 'here/cifar' instead of None"),
        (HERE, Translation(), "is a run of images, not of translation; give another --out"),
        (TAUGHT, replace(TAUGHT, teacher="here/rows/full/seed1"), "teacher"),
        (TAUGHT, replace(TAUGHT, teacher="here/rows/half/seed0"), "teacher"),
        (WHOLE, replace(HERE, method="plain", ratio=("1/8",)), "nest 'none' instead of 'width'"),
    ],
)
def test_other_settings_are_named_but_for_a_place_and_those_without_effect(
    made: Settings, asked: Settings, message: str | None, tmp_path: Path
) -> None:
    path = run(tmp_path / "r", [valid(full=0.1)], {"full": 0.1}, settings=made)
    with nullcontext() if message is None else pytest.raises(AlreadyThere, match=message):
        require_same_settings(path, asked)


def test_a_path_may_be_written_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar" / "inner").mkdir(parents=True)
    path = run(tmp_path / "r", [valid(full=0.1)], {"full": 0.1}, settings=replace(HERE, data=str(tmp_path / "cifar")))
    monkeypatch.chdir(tmp_path / "cifar")
    for same in (".", "../cifar", "inner/..", "../cifar/"):
        require_same_settings(path, replace(HERE, data=same))
    with pytest.raises(AlreadyThere, match=r"instead of '\.\.'"):
        require_same_settings(path, replace(HERE, data=".."))


def test_a_finished_run_of_another_scale_or_corpus_is_not_mixed_in(tmp_path: Path) -> None:
    for job in ready(make_experiment("table3", REQUEST), open_folder(tmp_path))[:2]:
        run(job.path, *BOTH, settings=job.settings)
    require_all(make_experiment("table3", REQUEST), open_folder(tmp_path))
    require_all(make_experiment("table3", replace(REQUEST, seeds=5, data="/there/cifar")), open_folder(tmp_path))
    for other in (replace(REQUEST, scale="smoke"), replace(REQUEST, data="here/other")):
        with pytest.raises(AlreadyThere, match="other settings"):
            require_all(make_experiment("table3", other), open_folder(tmp_path))


def test_a_seed_that_is_not_asked_for_is_not_mixed_in_either(tmp_path: Path) -> None:
    """The table is of all seeds that are there."""
    plan, folder = opened(make_experiment("figure3", replace(REQUEST, seeds=2)), tmp_path)
    dropout = [job for job in ready(plan, folder) if job.path.parent.name == "dropout"]
    for job, lr in zip(dropout, (0.02, 0.5), strict=True):
        path = run(job.path, [valid(full=0.1)], {"full": 0.1}, settings=replace(job.settings, lr=lr))
    for _ in ("finished", "unfinished"):
        with pytest.raises(AlreadyThere, match=r"seed1 is a run with other settings \(lr 0\.5 instead of 0\.02\)"):
            require_all(make_experiment("figure3", REQUEST), open_folder(tmp_path))
        (path / "summary.json").unlink(missing_ok=True)


def test_data_that_were_changed_under_finished_runs_are_noticed(tmp_path: Path) -> None:
    plan, folder = opened(make_experiment("table3", REQUEST), tmp_path)
    for job, digest in zip(ready(plan, folder)[:3], ("a", "a", "b"), strict=True):
        run(job.path, *BOTH, settings=job.settings)
        config = json.loads((job.path / "config.json").read_text())
        (job.path / "config.json").write_text(json.dumps({**config, "data": digest}))
    with pytest.raises(AlreadyThere, match=r"lr0\.1-warm0 was trained on other data than .*lr0\.05-warm0"):
        require_all(plan, open_folder(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_finished_run_that_lacks_a_file_is_named(name: str, tmp_path: Path) -> None:
    plan, folder = opened(make_experiment("table3", REQUEST), tmp_path)
    job = ready(plan, folder)[0]
    run(job.path, *BOTH, settings=job.settings)
    (job.path / name).unlink()
    with pytest.raises(ValueError, match=rf"lr0.05-warm0 is damaged: .* {name}.* repeat the command to train it again"):
        require_all(plan, open_folder(tmp_path))
