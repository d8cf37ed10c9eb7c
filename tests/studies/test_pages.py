"""Stored results, the pages that are written from them, and stored trainings and reproductions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import PRESETS
from partialsgd.lab.reproduce import Request, make_experiment
from partialsgd.lab.reproduce.numbers import collect
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.errors import AlreadyThere
from studies import pages, recipes, reproductions, results, write
from tests.lab.reproduce.made import open_folder, run, valid

LEVEL = {"parameters": 10, "share": 0.5, "updates": 7, "flops": 2e9, "latency": 0.004, "test": {"BLEU": 12.345}}
SUMMARY = {
    "score": "BLEU",
    "steps": 14,
    "seconds": 90.0,
    "levels": {"core": LEVEL},
    "versions": {"torch": "2.13"},
    "extras": {"signature": "nrefs:1", "nearest": "BLEU 3"},
}


def finished_run(folder: Path) -> Run:
    settings = replace(PRESETS["laptop"], data=str(folder / "multi30k"), source="de", target="en", ratio=("1/8", "1/4"))
    run = Run.new(settings.__class__(**{**vars(settings), "out": str(folder / "run")}))
    run.write_json("summary.json", SUMMARY)
    return run


def test_the_command_is_what_differs_from_the_preset_and_names_no_place(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    said = "partialsgd train translation --ratio 1/8 1/4 --data multi30k --source de --target en"
    assert recipes.command(run) == said
    recipes.store(run, "one", "Multi30k", file=tmp_path / "recipes.jsonl")
    (record,) = results.read(tmp_path / "recipes.jsonl")
    assert str(tmp_path) not in (tmp_path / "recipes.jsonl").read_text() and record["summary"] == SUMMARY
    page = recipes.sections(tmp_path / "recipes.jsonl")
    assert said in page and "| core | 10 | 50.0% | 7 | 2e+09 | 12.35 | 4 ms |" in page
    assert "1.5 minutes" in page and "nrefs:1" in page and "Baseline: BLEU 3" in page


def test_a_training_that_goes_on_is_not_stored(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    (run.path / "summary.json").unlink()
    with pytest.raises(SystemExit, match="is not finished"):
        recipes.store(run, "one", "Multi30k", file=tmp_path / "recipes.jsonl")


def test_a_record_takes_the_place_of_one_with_the_same_key_and_a_kill_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new" / "all.jsonl"
    for name, value in (("b", 1), ("a", 2), ("b", 3)):
        results.put(file, {"name": name, "value": value}, key=["name"])
    assert results.read(file) == [{"name": "a", "value": 2}, {"name": "b", "value": 3}]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        results.put(file, {"name": "c", "value": 4}, key=["name"])
    assert len(results.read(file)) == 2


@pytest.mark.parametrize(("page", "name"), write.BLOCKS, ids=lambda each: getattr(each, "name", each))
def test_every_page_is_what_is_stored(page: Path, name: str) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == pages.with_block(text, name, write.BLOCKS[page, name]()), "run python -m studies.write"


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="must have <!-- results: written by"):
        pages.with_block("no marker", "results", "new")


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


@pytest.mark.parametrize("file", reproductions.stored(), ids=lambda file: file.stem)
def test_the_figures_are_what_is_stored(file: Path, tmp_path: Path) -> None:
    paths = reproductions.draw(file, tmp_path)
    assert paths
    for path in paths:
        now, shown = imread(path), imread(write.FIGURES / path.name)
        assert now.shape == shown.shape and abs(now - shown).mean() < 1e-3  # compression may differ


def test_what_was_made_for_something_else_is_not_published(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "figure3-laptop")
    run(folder.run("dropout", 0), [valid(full=0.4)], {"full": 0.4}, settings=Images(data="cifar", lr=7.0))
    reproductions.store(folder.path, {**ABOUT, "name": "figure3"}, tmp_path / "stored")
    with pytest.raises(AlreadyThere, match=r"other settings .*lr 7\.0 instead of"):
        reproductions.sections(tmp_path / "stored")
