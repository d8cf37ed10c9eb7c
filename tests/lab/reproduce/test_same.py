"""Runs that were made for something else are not taken for ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.jobs import ready
from partialsgd.lab.reproduce.plans import Asked
from partialsgd.lab.reproduce.same import require_all, require_same

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.reproduce import experiment
from partialsgd.lab.training.errors import AlreadyThere
from tests.lab.reproduce.made import look, run

HERE = Images(data="here/cifar", threads=1)


def test_a_place_does_not_make_another_run(tmp_path: Path) -> None:
    path = run(tmp_path / "r", [look(full=0.1)], {"full": 0.1}, settings=HERE)
    require_same(path, replace(HERE, out="elsewhere", threads=2, data="/moved/to/cifar"))


def test_the_place_may_be_told_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar" / "inner").mkdir(parents=True)
    path = run(tmp_path / "r", [look(full=0.1)], {"full": 0.1}, settings=replace(HERE, data=str(tmp_path / "cifar")))
    monkeypatch.chdir(tmp_path / "cifar")
    for same in (".", "../cifar", "inner/..", "../cifar/"):
        require_same(path, replace(HERE, data=same))
    with pytest.raises(AlreadyThere, match=r"instead of '\.\.'"):
        require_same(path, replace(HERE, data=".."))


def test_a_teacher_is_told_by_its_row_and_seed(tmp_path: Path) -> None:
    taught = Translation(teacher="here/rows/full/seed0")
    path = run(tmp_path / "r", [look(full=0.1)], {"full": 0.1}, settings=taught)
    require_same(path, replace(taught, teacher="/moved/rows/full/seed0"))
    for other in ("here/rows/full/seed1", "here/rows/half/seed0"):
        with pytest.raises(AlreadyThere, match="teacher"):
            require_same(path, replace(taught, teacher=other))


def test_ratios_say_nothing_of_a_network_without_levels(tmp_path: Path) -> None:
    whole = replace(HERE, nest="none", method="plain")
    path = run(tmp_path / "r", [look(full=0.1)], {"full": 0.1}, settings=whole)
    require_same(path, replace(whole, ratio=("1/8",)))
    with pytest.raises(AlreadyThere, match="nest 'none' instead of 'width'"):
        require_same(path, replace(HERE, method="plain", ratio=("1/8",)))


def test_other_settings_are_named(tmp_path: Path) -> None:
    path = run(tmp_path / "r", [look(full=0.1)], {"full": 0.1}, settings=HERE)
    with pytest.raises(AlreadyThere, match=r"other settings \(seed 0 instead of 3, lr 0\.05 instead of 0\.2\)"):
        require_same(path, replace(HERE, lr=0.2, seed=3))
    with pytest.raises(AlreadyThere, match="data 'here/cifar' instead of 'here/digits'"):
        require_same(path, replace(HERE, data="here/digits"))
    with pytest.raises(AlreadyThere, match="data 'here/cifar' instead of None"):
        require_same(path, replace(HERE, data=None))


def test_a_run_of_another_recipe_is_refused_as_such(tmp_path: Path) -> None:
    path = run(tmp_path / "r", [look(full=0.1)], {"full": 0.1}, settings=HERE)
    with pytest.raises(AlreadyThere, match="is a run of images, not of translation; give another --out"):
        require_same(path, Translation())


def test_a_finished_run_of_another_scale_or_corpus_is_not_mixed_in(tmp_path: Path) -> None:
    asked, folder = Asked("laptop", "here/cifar", seeds=1), Folder(tmp_path)
    for job in ready(experiment("table3", asked), folder)[:2]:
        run(job.path, [look(core=0.1, full=0.1)], {"core": 0.1, "full": 0.1}, settings=job.settings)
    require_all(experiment("table3", asked), Folder(tmp_path))
    require_all(experiment("table3", replace(asked, seeds=5, data="/there/cifar")), Folder(tmp_path))
    for other in (replace(asked, scale="smoke"), replace(asked, data="here/other")):
        with pytest.raises(AlreadyThere, match="other settings"):
            require_all(experiment("table3", other), Folder(tmp_path))


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_seed_that_is_not_asked_for_is_not_mixed_in_either(is_finished: bool, tmp_path: Path) -> None:
    """The table is of all seeds that are there."""
    plan, folder = experiment("figure3", Asked("laptop", "here/cifar", seeds=2)), Folder(tmp_path)
    dropout = [job for job in ready(plan, folder) if job.path.parent.name == "dropout"]
    for job, lr in zip(dropout, (0.02, 0.5), strict=True):
        path = run(job.path, [look(full=0.1)], {"full": 0.1}, settings=replace(job.settings, lr=lr))
    if not is_finished:
        (path / "summary.json").unlink()
    with pytest.raises(AlreadyThere, match=r"seed1 is a run with other settings \(lr 0\.5 instead of 0\.02\)"):
        require_all(experiment("figure3", Asked("laptop", "here/cifar", seeds=1)), Folder(tmp_path))


def test_data_that_were_changed_under_finished_runs_are_noticed(tmp_path: Path) -> None:
    plan, folder = experiment("table3", Asked("laptop", "here/cifar", seeds=1)), Folder(tmp_path)
    for job, digest in zip(ready(plan, folder)[:3], ("a", "a", "b"), strict=True):
        run(job.path, [look(core=0.1, full=0.1)], {"core": 0.1, "full": 0.1}, settings=job.settings)
        config = json.loads((job.path / "config.json").read_text())
        (job.path / "config.json").write_text(json.dumps({**config, "data": digest}))
    with pytest.raises(AlreadyThere, match=r"lr0\.1-warm0 was trained on other data than .*lr0\.05-warm0"):
        require_all(plan, Folder(tmp_path))


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_finished_run_that_lacks_a_file_is_named(name: str, tmp_path: Path) -> None:
    plan, folder = experiment("table3", Asked("laptop", "here/cifar", seeds=1)), Folder(tmp_path)
    job = ready(plan, folder)[0]
    run(job.path, [look(core=0.1, full=0.1)], {"core": 0.1, "full": 0.1}, settings=job.settings)
    (job.path / name).unlink()
    with pytest.raises(ValueError, match=rf"lr0.05-warm0 is damaged: .* {name}.* the same call trains it anew"):
        require_all(plan, Folder(tmp_path))
