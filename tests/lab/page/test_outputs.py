"""The section of outputs: whatever a recipe added to the summary of a run."""

from __future__ import annotations

from pathlib import Path

from tests.lab.page import example_runs
from tests.lab.page.page_parts import rows, section, texts, words


def test_sample_shows_its_input_once_and_the_outputs_of_all_levels(tmp_path: Path) -> None:
    part = section("outputs", example_runs.three(tmp_path))
    assert len(list(part.iter("dl"))) == 1
    assert list(zip(texts(part, "dt"), texts(part, "dd"), strict=True)) == [
        ("source", "a sample that is long enough to be text"),
        ("reference", "eine Probe"),
        ("joint · core", "eine Probe von core"),
        ("joint · full", "eine Probe von full"),
        ("core-alone · core", "eine Probe von full"),
        ("full-alone · full", "eine Probe von full"),
    ]


def test_short_records_are_a_table_and_lists_are_lists(tmp_path: Path) -> None:
    extras = {"baseline": [{"AUC": 0.99312, "n": 3}, {"n": None}], "notes": ["one", 2.5], "nearest": "BLEU 10.5"}
    part = section("outputs", [example_runs.run(tmp_path, extras=extras)])
    assert texts(part, "h3") == ["Baseline", "Notes", "Nearest"]
    assert rows(part) == [["AUC", "n"], ["0.9931", "3"], ["–", "–"]]
    assert texts(part, "li") == ["one", "2.5"] and texts(part, "p") == ["BLEU 10.5"]


def test_results_that_differ_between_runs_stand_under_their_names(tmp_path: Path) -> None:
    extras = {name: {"nearest": name, "notes": ["same"]} for name in ("a", "b")}
    part = section("outputs", [example_runs.run(tmp_path, name, extras=own) for name, own in extras.items()])
    assert texts(part, "h4") == ["a", "b"] == texts(part, "p")
    assert texts(part, "li") == ["same"]


def test_only_the_first_samples_are_unfolded_and_an_empty_output_is_marked(tmp_path: Path) -> None:
    samples = [{"source": f"{k} {'long ' * 10}", "core": "", "full": "y"} for k in range(20)]
    part = section("outputs", [example_runs.run(tmp_path, extras={"samples": samples})])
    assert texts(part, "summary") == ["14 more"] and len(list(part.iter("dl"))) == 20
    answers = [words(each) for each in part.iter("dd") if each.get("class") == "output"]
    assert answers == ["(nothing)", "y"] * 20


def test_unfinished_run_has_no_outputs(tmp_path: Path) -> None:
    part = section("outputs", [example_runs.run(tmp_path, ends=False)])
    assert texts(part, "p") == ["Sample outputs are shown when a run is finished."]
