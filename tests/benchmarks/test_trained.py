"""A stored training says what to type for it, and the page is what the stored trainings say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import trained
from partialsgd.lab.recipes.translation.settings import of_preset
from partialsgd.lab.runs.run import Run

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
    settings = of_preset("laptop", data=str(folder / "multi30k"), source="de", target="en", ratio=("1/8", "1/4"))
    run = Run.new(settings.__class__(**{**vars(settings), "out": str(folder / "run")}))
    run.write_json("summary.json", SUMMARY)
    return run


def test_the_command_is_what_differs_from_the_preset_and_names_no_place(tmp_path: Path) -> None:
    run = made(tmp_path)
    said = "partialsgd train translation --data multi30k --source de --target en --ratio 1/8 1/4"
    assert trained.command(run) == said
    trained.store(run, "one", "Multi30k", folder=tmp_path / "stored")
    text = (tmp_path / "stored" / "one.json").read_text()
    assert str(tmp_path) not in text and json.loads(text)["summary"] == SUMMARY
    page = trained.written(tmp_path / "stored")
    assert said in page and "| core | 10 | 50.0% | 7 | 2e+09 | 12.35 | 4 ms |" in page
    assert "1.5 minutes" in page and "nrefs:1" in page and "Baseline: BLEU 3" in page


def test_a_training_that_goes_on_is_not_stored(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run.path / "summary.json").unlink()
    with pytest.raises(SystemExit, match="not at its end"):
        trained.store(run, "one", "Multi30k", folder=tmp_path / "stored")


def test_the_page_is_what_is_stored() -> None:
    page = trained.PAGE.read_text(encoding="utf-8")
    assert trained.in_place(page, trained.written()) == page
