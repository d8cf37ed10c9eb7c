"""What a recipe wrote at the end of a run, whatever it is."""

from __future__ import annotations

from pathlib import Path

from partialsgd.lab.page import outputs
from partialsgd.lab.page.markup import Html
from partialsgd.lab.page.stored import read
from tests.lab.page import made, seen


def pairs(part: Html, number: int = 0) -> list[tuple[str, str]]:
    sample = list(seen.tree(part).iter("dl"))[number]
    return [(seen.words(sample[k]), seen.words(sample[k + 1])) for k in range(0, len(sample), 2)]


def test_a_sample_shows_what_each_level_of_each_run_says_below_what_it_was_given(tmp_path: Path) -> None:
    part = outputs.shown(read(made.three(tmp_path)))
    assert len(list(seen.tree(part).iter("dl"))) == 1
    assert pairs(part) == [
        ("source", "a sample that is long enough to be text"),
        ("reference", "eine Probe"),
        ("joint · core", "eine Probe von core"),
        ("joint · full", "eine Probe von full"),
        ("core-alone · core", "eine Probe von full"),
        ("full-alone · full", "eine Probe von full"),
    ]


def test_short_records_are_a_table_lists_are_lists_and_text_is_text(tmp_path: Path) -> None:
    extras = {"baseline": [{"AUC": 0.99312, "n": 3}, {"n": None}], "notes": ["one", 2.5], "nearest": "BLEU 10.5"}
    part = outputs.shown(read([made.run(tmp_path, extras=extras)]))
    assert seen.titles(part) == ["Baseline", "Notes", "Nearest"]
    assert seen.rows(part) == [["AUC", "n"], ["0.9931", "3"], ["–", "–"]]
    assert [seen.words(item) for item in seen.tree(part).iter("li")] == ["one", "2.5"]
    assert seen.paragraphs(part) == ["BLEU 10.5"]


def test_what_two_runs_say_differently_is_under_their_names(tmp_path: Path) -> None:
    runs = read([made.run(tmp_path, name, extras={"nearest": name, "notes": ["same"]}) for name in ("a", "b")])
    part = outputs.shown(runs)
    assert seen.titles(part, "h4") == ["a", "b"] == seen.paragraphs(part)
    assert len(list(seen.tree(part).iter("li"))) == 1


def test_many_samples_are_folded(tmp_path: Path) -> None:
    samples = [{"source": f"{k} {'long ' * 10}", "core": "x", "full": "y"} for k in range(20)]
    part = outputs.shown(read([made.run(tmp_path, extras={"samples": samples})]))
    assert seen.titles(part, "summary") == ["14 more"] and len(list(seen.tree(part).iter("dl"))) == 20


def test_before_the_end_there_are_none(tmp_path: Path) -> None:
    part = outputs.shown(read([made.run(tmp_path, ends=False)]))
    assert seen.paragraphs(part) == ["There are sample outputs when a run is at its end."]


def test_an_empty_answer_is_told(tmp_path: Path) -> None:
    samples = [{"source": "long " * 10, "core": "", "full": "an answer"}]
    part = outputs.shown(read([made.run(tmp_path, extras={"samples": samples})]))
    said = [seen.words(each) for each in seen.tree(part).iter("dd") if each.get("class") == "said"]
    assert said == ["(nothing)", "an answer"]
