"""Which runs a folder has, what their files say, and which cell of a grid is best."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce import make_experiment
from partialsgd.lab.reproduce.experiment import Cell, Request, Row, always
from partialsgd.lab.reproduce.run_folder import FinishedRun, require_same_settings
from partialsgd.lab.reproduce.schedule import ready, require_all
from partialsgd.lab.training.errors import AlreadyThere
from tests.lab.reproduce.made import GRID, open_folder, opened, run, search, valid


def test_looks_are_the_evaluations_in_order(tmp_path: Path) -> None:
    path = run(tmp_path / "r", [valid(core=0.1, full=0.2), valid(core=0.3, full=0.4)], {"core": 0.3, "full": 0.4})
    first, second = FinishedRun(path).evaluations
    assert (first.steps, first.epoch, second.steps, second.epoch) == (10, 1.0, 20, 2.0)
    assert second.levels == {"core": {"accuracy": 0.3, "loss": 0.7}, "full": {"accuracy": 0.4, "loss": 0.6}}


def test_a_merit_is_the_best_mean_and_of_a_loss_the_smallest(tmp_path: Path) -> None:
    evaluations = [valid(core=0.2, full=0.4), valid(core=0.5, full=0.7), valid(core=0.1, full=0.9)]
    ended = FinishedRun(run(tmp_path / "r", evaluations, {"core": 0.5, "full": 0.7}))
    assert ended.selection_score("accuracy") == pytest.approx(0.6)
    assert ended.selection_score("loss") == pytest.approx(-0.4)


def test_levels_that_are_not_trained_do_not_count(tmp_path: Path) -> None:
    flops = {"core": 1.0, "full": 0.0}
    ended = FinishedRun(run(tmp_path / "r", [valid(core=0.2, full=0.9)], {"core": 0.2, "full": 0.9}, flops=flops))
    assert ended.selection_score("accuracy") == pytest.approx(0.2)


def test_what_diverged_is_at_its_end_and_the_worst(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    run(folder.run("core", 0), [valid(full=0.9)], None)
    (ended,) = folder.seeds("core")
    assert ended.selection_score("accuracy") == float("-inf") and folder.scored("core") == []


def test_a_look_that_is_nan_never_wins(tmp_path: Path) -> None:
    ended = FinishedRun(run(tmp_path / "r", [valid(full=0.3), valid(full=float("nan"))], {"full": 0.3}))
    assert ended.selection_score("accuracy") == pytest.approx(0.3)


def test_a_cell_is_chosen_once_all_are_known(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    run(folder.cell("core", GRID.cells[0]), [valid(full=0.9)], {"full": 0.9})
    assert folder.chosen_cell("core") is None
    run(folder.cell("core", GRID.cells[1]), [valid(full=0.95)], {"full": 0.1})  # the test data do not choose
    assert folder.chosen_cell("core") == GRID.cells[1]


def test_where_every_cell_has_diverged_none_is_chosen(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    for cell in GRID.cells:
        run(folder.cell("core", cell), [valid(full=0.9)], None)
    assert folder.chosen_cell("core") is None


def test_a_copy_of_a_cell_is_no_cell(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    search(folder, "core", [0.5, 0.2])
    for name in ("lr0.1-warm0.old", "lr0.7-warm0"):
        run(folder.path / "grid" / "core" / name, [valid(full=0.9)], {"full": 0.9})
    assert list(folder.searched_before("core")) == [Cell(0.7, 0)]


def test_a_row_takes_the_cell_that_its_grid_chose(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    row = Row("other", always(Images(epochs=7)), 1, tuned_as="core")
    assert folder.settings(row, 0) is None
    search(folder, "core", [0.2, 0.8])
    settings = folder.settings(row, 0)
    assert isinstance(settings, Images)
    assert (settings.lr, settings.warm_up, settings.epochs) == (0.2, 5, 7)


def test_seeds_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    for seed in (10, 2, 0):
        run(folder.run("core", seed), [valid(full=seed / 100)], {"full": seed / 100})
    (tmp_path / "rows" / "core" / "seed1.old").mkdir()  # somebody's
    assert [each.path.name for each in folder.seeds("core")] == ["seed0", "seed2", "seed10"]


HERE = Images(data="here/cifar", threads=1)


def test_a_place_does_not_make_another_run(tmp_path: Path) -> None:
    path = run(tmp_path / "r", [valid(full=0.1)], {"full": 0.1}, settings=HERE)
    require_same_settings(path, replace(HERE, out="elsewhere", threads=2, data="/moved/to/cifar"))


def test_the_place_may_be_told_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar" / "inner").mkdir(parents=True)
    path = run(tmp_path / "r", [valid(full=0.1)], {"full": 0.1}, settings=replace(HERE, data=str(tmp_path / "cifar")))
    monkeypatch.chdir(tmp_path / "cifar")
    for same in (".", "../cifar", "inner/..", "../cifar/"):
        require_same_settings(path, replace(HERE, data=same))
    with pytest.raises(AlreadyThere, match=r"instead of '\.\.'"):
        require_same_settings(path, replace(HERE, data=".."))


def test_a_teacher_is_told_by_its_row_and_seed(tmp_path: Path) -> None:
    taught = Translation(teacher="here/rows/full/seed0")
    path = run(tmp_path / "r", [valid(full=0.1)], {"full": 0.1}, settings=taught)
    require_same_settings(path, replace(taught, teacher="/moved/rows/full/seed0"))
    for other in ("here/rows/full/seed1", "here/rows/half/seed0"):
        with pytest.raises(AlreadyThere, match="teacher"):
            require_same_settings(path, replace(taught, teacher=other))


def test_ratios_say_nothing_of_a_network_without_levels(tmp_path: Path) -> None:
    whole = replace(HERE, nest="none", method="plain")
    path = run(tmp_path / "r", [valid(full=0.1)], {"full": 0.1}, settings=whole)
    require_same_settings(path, replace(whole, ratio=("1/8",)))
    with pytest.raises(AlreadyThere, match="nest 'none' instead of 'width'"):
        require_same_settings(path, replace(HERE, method="plain", ratio=("1/8",)))


def test_other_settings_are_named(tmp_path: Path) -> None:
    path = run(tmp_path / "r", [valid(full=0.1)], {"full": 0.1}, settings=HERE)
    with pytest.raises(AlreadyThere, match=r"other settings \(seed 0 instead of 3, lr 0\.05 instead of 0\.2\)"):
        require_same_settings(path, replace(HERE, lr=0.2, seed=3))
    with pytest.raises(AlreadyThere, match="data 'here/cifar' instead of 'here/digits'"):
        require_same_settings(path, replace(HERE, data="here/digits"))
    with pytest.raises(AlreadyThere, match="data 'here/cifar' instead of None"):
        require_same_settings(path, replace(HERE, data=None))


def test_a_run_of_another_recipe_is_refused_as_such(tmp_path: Path) -> None:
    path = run(tmp_path / "r", [valid(full=0.1)], {"full": 0.1}, settings=HERE)
    with pytest.raises(AlreadyThere, match="is a run of images, not of translation; give another --out"):
        require_same_settings(path, Translation())


def test_a_finished_run_of_another_scale_or_corpus_is_not_mixed_in(tmp_path: Path) -> None:
    request, folder = Request("laptop", "here/cifar", seeds=1), open_folder(tmp_path)
    for job in ready(make_experiment("table3", request), folder)[:2]:
        run(job.path, [valid(core=0.1, full=0.1)], {"core": 0.1, "full": 0.1}, settings=job.settings)
    require_all(make_experiment("table3", request), open_folder(tmp_path))
    require_all(make_experiment("table3", replace(request, seeds=5, data="/there/cifar")), open_folder(tmp_path))
    for other in (replace(request, scale="smoke"), replace(request, data="here/other")):
        with pytest.raises(AlreadyThere, match="other settings"):
            require_all(make_experiment("table3", other), open_folder(tmp_path))


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_seed_that_is_not_asked_for_is_not_mixed_in_either(is_finished: bool, tmp_path: Path) -> None:
    """The table is of all seeds that are there."""
    plan, folder = opened(make_experiment("figure3", Request("laptop", "here/cifar", seeds=2)), tmp_path)
    dropout = [job for job in ready(plan, folder) if job.path.parent.name == "dropout"]
    for job, lr in zip(dropout, (0.02, 0.5), strict=True):
        path = run(job.path, [valid(full=0.1)], {"full": 0.1}, settings=replace(job.settings, lr=lr))
    if not is_finished:
        (path / "summary.json").unlink()
    with pytest.raises(AlreadyThere, match=r"seed1 is a run with other settings \(lr 0\.5 instead of 0\.02\)"):
        require_all(make_experiment("figure3", Request("laptop", "here/cifar", seeds=1)), open_folder(tmp_path))


def test_data_that_were_changed_under_finished_runs_are_noticed(tmp_path: Path) -> None:
    plan, folder = opened(make_experiment("table3", Request("laptop", "here/cifar", seeds=1)), tmp_path)
    for job, digest in zip(ready(plan, folder)[:3], ("a", "a", "b"), strict=True):
        run(job.path, [valid(core=0.1, full=0.1)], {"core": 0.1, "full": 0.1}, settings=job.settings)
        config = json.loads((job.path / "config.json").read_text())
        (job.path / "config.json").write_text(json.dumps({**config, "data": digest}))
    with pytest.raises(AlreadyThere, match=r"lr0\.1-warm0 was trained on other data than .*lr0\.05-warm0"):
        require_all(plan, open_folder(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_finished_run_that_lacks_a_file_is_named(name: str, tmp_path: Path) -> None:
    plan, folder = opened(make_experiment("table3", Request("laptop", "here/cifar", seeds=1)), tmp_path)
    job = ready(plan, folder)[0]
    run(job.path, [valid(core=0.1, full=0.1)], {"core": 0.1, "full": 0.1}, settings=job.settings)
    (job.path / name).unlink()
    with pytest.raises(ValueError, match=rf"lr0.05-warm0 is damaged: .* {name}.* repeat the command to train it again"):
        require_all(plan, open_folder(tmp_path))
