"""Stored reproductions: the file, and the section that is written from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.reproduce import make_experiment
from partialsgd.lab.reproduce.experiment import Request
from partialsgd.lab.reproduce.numbers import collect
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.training.errors import AlreadyThere
from studies import reproductions, results, write
from tests.lab.reproduce.made import open_folder, run, valid

ABOUT: dict[str, Any] = {
    "name": "table3",
    "request": {"scale": "laptop", "data": "cifar"},
    "order": 1,
    "says": "Table 3 on a part of CIFAR-10",
    "command": "partialsgd reproduce table3",
    "commit": "abc",
    "data": "Ten thousand images.",
    "machine": "Two cores.",
    "note": "",
}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    folder = open_folder(tmp_path / "table3-laptop")
    for seed in (0, 1):
        settings = Images(data=str(tmp_path / "secret" / "cifar"), seed=seed)
        evaluations = [valid(core=0.3, full=0.4), valid(core=0.5, full=0.6 + seed / 10)]
        run(folder.run("alternating", seed), evaluations, {"core": 0.5, "full": 0.6 + seed / 10}, settings=settings)
    unfinished = run(folder.run("slimmable", 0), [valid(core=0.3, full=0.4)], {"core": 0.3, "full": 0.4})
    (unfinished / "summary.json").unlink()
    gone = run(folder.path / "grid" / "alternating" / "lr0.7-warm0", [], None, settings=Images(epochs=2))
    (gone / "metrics.jsonl").unlink()  # in its first step
    (gone / "failed.json").write_text(json.dumps({"error": f"the loss is nan. What to try: less. It is in {gone}"}))
    summary = folder.run("alternating", 0) / "summary.json"
    told = json.loads(summary.read_text())
    told["versions"] = {"torch": "9.9"}
    told["extras"]["samples"] = [{"source": "a sentence of somebody"}]
    summary.write_text(json.dumps(told))
    return folder.path


def test_no_path_and_no_text_is_stored(made: Path, tmp_path: Path) -> None:
    file = reproductions.store(made, ABOUT, tmp_path / "stored")
    text = file.read_text()
    assert str(tmp_path) not in text and "somebody" not in text
    about, *runs = results.read(file)
    assert about == {"about": ABOUT}
    by_name = {run["run"]: run for run in runs}  # slimmable has not ended
    assert set(by_name) == {"rows/alternating/seed0", "rows/alternating/seed1", "grid/alternating/lr0.7-warm0"}
    assert by_name["grid/alternating/lr0.7-warm0"]["failed"] == {"error": "the loss is nan"}
    assert sum(len(run["metrics"]) for run in runs) == 4  # of 40 lines


def test_what_is_stored_stays_if_there_is_nothing_to_store(made: Path, tmp_path: Path) -> None:
    file = reproductions.store(made, ABOUT, tmp_path / "stored")
    before = file.read_bytes()
    for nothing in (tmp_path / "not there" / made.name, tmp_path / "stored"):
        with pytest.raises(SystemExit, match="has no finished run"):
            reproductions.store(nothing, ABOUT, tmp_path / "stored")
    assert file.read_bytes() == before and len(list(file.parent.iterdir())) == 1


def test_a_reproduction_is_stored_under_its_own_name(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    for _ in range(2):  # the second takes the place of the first
        assert reproductions.store(Path("."), ABOUT, tmp_path / "stored") == tmp_path / "stored" / f"{made.name}.jsonl"


def test_what_is_stored_gives_the_same_numbers(made: Path, tmp_path: Path) -> None:
    plan = make_experiment("table3", Request(**ABOUT["request"]))
    with reproductions.unpacked(reproductions.store(made, ABOUT, tmp_path / "stored")) as (stored_plan, folder):
        assert collect(stored_plan, folder) == collect(plan, RunFolder(made, plan))


def test_a_section_says_what_was_run_and_what_came_out(made: Path, tmp_path: Path) -> None:
    reproductions.store(made, ABOUT, tmp_path / "stored")
    text = reproductions.sections(tmp_path / "stored")
    for part in (
        "Table 3 on a part of CIFAR-10",
        "partialsgd reproduce table3",
        "Commit abc",
        "2 runs",
        "65.00 (7.07)",
        "Network resnet18, 16 channels in the first stage.",  # a choice
        "Made with torch 9.9.",
    ):
        assert part in text


def test_wall_time_is_told_once_every_run_has_counted_it(made: Path, tmp_path: Path) -> None:
    for seed, wall in enumerate((1800.0, 3600.0)):
        to = reproductions.store(made, ABOUT, tmp_path / f"stored{seed}")
        assert "evaluations come on top" in reproductions.sections(to.parent)
        file = made / "rows" / "alternating" / f"seed{seed}" / "summary.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "wall": wall}))
    to = reproductions.store(made, ABOUT, tmp_path / "stored")
    assert "1.5 hours of wall time with evaluations" in reproductions.sections(to.parent)


@pytest.mark.parametrize("file", reproductions.stored(), ids=lambda file: file.stem)
def test_the_figures_are_what_is_stored(file: Path, tmp_path: Path) -> None:
    paths = reproductions.draw(file, tmp_path)
    assert paths
    for path in paths:
        published = write.FIGURES / path.name
        if path.suffix == ".svg":
            assert path.read_bytes() == published.read_bytes()
        else:
            now, shown = imread(path), imread(published)
            assert now.shape == shown.shape and abs(now - shown).mean() < 1e-3  # compression may differ


def test_what_was_made_for_something_else_is_not_published(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "figure3-laptop")
    run(folder.run("dropout", 0), [valid(full=0.4)], {"full": 0.4}, settings=Images(data="cifar", lr=7.0))
    reproductions.store(folder.path, {**ABOUT, "name": "figure3"}, tmp_path / "stored")
    with pytest.raises(AlreadyThere, match=r"other settings .*lr 7\.0 instead of"):
        reproductions.sections(tmp_path / "stored")
