"""Result files, the pages that are written from them, and stored trainings by the recipes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from partialsgd.lab.recipes.translation.settings import PRESETS
from partialsgd.lab.runs.run import Run
from studies import pages, recipes, results, write

LEVEL = {"parameters": 10, "share": 0.5, "updates": 7, "flops": 2e9, "latency": 0.004, "test": {"BLEU": 12.345}}
SUMMARY = {
    "score": "BLEU",
    "steps": 14,
    "seconds": 90.0,
    "levels": {"core": LEVEL},
    "versions": {"torch": "2.13"},
    "extras": {"signature": "nrefs:1", "nearest": "BLEU 3"},
}


def made(folder: Path) -> Run:
    settings = replace(PRESETS["laptop"], data=str(folder / "multi30k"), source="de", target="en", ratio=("1/8", "1/4"))
    run = Run.new(settings.__class__(**{**vars(settings), "out": str(folder / "run")}))
    run.write("summary.json", SUMMARY)
    return run


def test_the_command_is_what_differs_from_the_preset_and_names_no_place(tmp_path: Path) -> None:
    run = made(tmp_path)
    said = "partialsgd train translation --data multi30k --source de --target en --ratio 1/8 1/4"
    assert recipes.command(run) == said
    recipes.store(run, "one", "Multi30k", file=tmp_path / "recipes.jsonl")
    (record,) = results.read(tmp_path / "recipes.jsonl")
    assert str(tmp_path) not in (tmp_path / "recipes.jsonl").read_text() and record["summary"] == SUMMARY
    page = recipes.sections(tmp_path / "recipes.jsonl")
    assert said in page and "| core | 10 | 50.0% | 7 | 2e+09 | 12.35 | 4 ms |" in page
    assert "1.5 minutes" in page and "nrefs:1" in page and "Baseline: BLEU 3" in page


def test_a_training_that_goes_on_is_not_stored(tmp_path: Path) -> None:
    run = made(tmp_path)
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
