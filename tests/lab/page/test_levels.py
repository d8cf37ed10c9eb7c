"""The table of levels: what it has of one run, of several, and of one that is not at its end."""

from __future__ import annotations

import json
from pathlib import Path

from partialsgd.lab.page import levels
from partialsgd.lab.page.markup import Html
from partialsgd.lab.page.stored import read
from partialsgd.logging.records import FAILED
from tests.lab.page import made, seen


def shown(paths: list[Path]) -> Html:
    return levels.shown(read(paths), Html("in short"), [])


def test_a_run_has_a_row_for_each_level(tmp_path: Path) -> None:
    part = shown([made.run(tmp_path)])
    assert seen.rows(part) == [
        ["level", "BLEU", "parameters", "share", "training FLOPs", "updates", "latency"],
        ["core", "21.50", "1,000", "10 %", "2.00 × 10¹⁰", "20", "2 ms"],
        ["full", "30.12", "10,000", "100 %", "2.00 × 10¹¹", "20", "2 ms"],
    ]
    assert seen.paragraphs(part)[0] == "in short"
    assert f"sacrebleu signature: {made.SIGNATURE}" in seen.paragraphs(part)[1]


def test_several_runs_have_one_table_with_a_column_for_the_run(tmp_path: Path) -> None:
    head, *rest = seen.rows(shown(made.three(tmp_path)))
    assert head[:3] == ["run", "level", "BLEU"]
    assert [row[:4] for row in rest] == [
        ["joint", "core", "21.50", "1,000"],
        ["joint", "full", "30.12", "10,000"],
        ["core-alone", "core", "20.00", "1,000"],
        ["full-alone", "full", "30.12", "10,000"],
    ]
    assert rest[2][4] == "–"


def test_what_it_is_sorted_by_is_beside_what_is_shown(tmp_path: Path) -> None:
    table = next(seen.tree(shown(made.three(tmp_path))).iter("table"))
    cells = list(list(table.iter("tr"))[3])
    assert cells[0].get("data-text") == "core-alone" and cells[3].get("data-number") == "1000.0"
    assert cells[4].get("data-number") is None and cells[4].text == "–"
    heads = list(next(table.iter("tr")))
    assert {head.get("aria-sort") for head in heads} == {"none"} and all(
        head.find("button") is not None for head in heads
    )


def test_recipes_with_other_scores_have_columns_of_their_own(tmp_path: Path) -> None:
    paths = [made.run(tmp_path, "a"), made.run(tmp_path, "b", recipe="images", score="accuracy")]
    head, *rest = seen.rows(shown(paths))
    assert head[2:4] == ["BLEU", "accuracy"] and [row[2:4] for row in rest[1:3]] == [["30.12", "–"], ["–", "21.50"]]


def test_a_run_that_is_not_at_its_end_says_so_and_shows_what_is_there(tmp_path: Path) -> None:
    part = shown([made.run(tmp_path, "half", ends=False)])
    assert seen.rows(part) == [
        ["level", "validation loss", "updates"],
        ["core", "0.6897", "10"],
        ["full", "0.6897", "10"],
    ]
    (warning,) = [said for said in seen.paragraphs(part) if "half" in said]
    assert warning.startswith("half is not at its end: 20 steps so far, epoch 2 of 4.")
    assert f"partialsgd resume {tmp_path / 'half'}" in warning


def test_a_run_that_has_diverged_is_not_said_to_go_on(tmp_path: Path) -> None:
    path = made.run(tmp_path, "gone", ends=False)
    (path / FAILED).write_text('{"error": "the loss is nan"}')
    warning = next(text for text in seen.paragraphs(shown([path])) if text.startswith("gone"))
    assert warning.startswith("gone has diverged after ") and warning.endswith("steps: the loss is nan")
    assert "diverged" in seen.words(seen.tree(levels.meta(read([path]))))
    (path / "metrics.jsonl").unlink()
    said = " ".join(seen.paragraphs(shown([path])))
    assert "gone has diverged after 0 steps: the loss is nan" in said and "no step yet" not in said


def test_wall_time_is_told_where_it_is_known(tmp_path: Path) -> None:
    path = made.run(tmp_path, "done")
    before = seen.words(seen.tree(levels.meta(read([path]))))
    file = path / "summary.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "wall": 150.0}))
    after = seen.words(seen.tree(levels.meta(read([path]))))
    assert before.endswith("1 min 30 s of training") and after == f"{before}, 2 min 30 s with evaluations"


def test_a_run_without_a_step_has_no_table(tmp_path: Path) -> None:
    path = made.run(tmp_path, "new", ends=False)
    (path / "metrics.jsonl").unlink()
    part = shown([path])
    assert not list(seen.tree(part).iter("table")) and "new has made no step yet" in seen.paragraphs(part)[1]


def test_a_level_without_steps_of_its_own_is_explained(tmp_path: Path) -> None:
    part = shown([made.run(tmp_path, updates={"core": 40})])
    assert seen.rows(part)[2][5] == "0" and "had no steps of its own" in " ".join(seen.paragraphs(part))


def test_all_test_numbers_are_there_folded(tmp_path: Path) -> None:
    part = shown([made.run(tmp_path)])
    assert seen.titles(part, "summary") == ["All numbers on the test data"]
    assert seen.rows(part, 1) == [["", "core", "full"], ["loss", "1", "1"], ["BLEU", "21.5", "30.12"]]


def test_steps_are_those_of_the_summary_where_the_log_was_thinned(tmp_path: Path) -> None:
    path = made.run(tmp_path, "stored")
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (path / "metrics.jsonl").write_bytes(b"".join(lines[-1:]))
    assert f" · {len(lines)} steps · " in seen.words(seen.tree(levels.meta(read([path]))))
