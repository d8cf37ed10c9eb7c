"""The head of the page and the section of levels: for one run, for several, and for unfinished runs."""

from __future__ import annotations

import json
from pathlib import Path

from partialsgd.logging.records import FAILED
from tests.lab.page import example_runs
from tests.lab.page.page_parts import rows, section, texts, words


def lead(paths: list[Path]) -> str:
    return next(words(part) for part in section("levels", paths).iter("p") if part.get("class") == "lead")


def test_one_run_has_a_row_for_each_level(tmp_path: Path) -> None:
    part = section("levels", [example_runs.run(tmp_path)])
    assert rows(part) == [
        ["level", "BLEU", "parameters", "share", "training FLOPs", "updates", "latency"],
        ["core", "21.50", "1,000", "10 %", "2.00 × 10¹⁰", "20", "2 ms"],
        ["full", "30.12", "10,000", "100 %", "2.00 × 10¹¹", "20", "2 ms"],
    ]
    assert f"Signature of the score: {example_runs.SIGNATURE}." in texts(part, "p")[1]
    assert texts(part, "summary") == ["All numbers on the test data"]
    assert rows(part, 1) == [["", "core", "full"], ["loss", "1", "1"], ["BLEU", "21.5", "30.12"]]


def test_several_runs_have_one_table_that_can_be_sorted(tmp_path: Path) -> None:
    part = section("levels", example_runs.three(tmp_path))
    head, *body = rows(part)
    assert head[:3] == ["run", "level", "BLEU"]
    assert [row[:4] for row in body] == [
        ["joint", "core", "21.50", "1,000"],
        ["joint", "full", "30.12", "10,000"],
        ["core-alone", "core", "20.00", "1,000"],
        ["full-alone", "full", "30.12", "10,000"],
    ]
    heads, *_, core_alone, _ = next(part.iter("table")).iter("tr")
    cells = list(core_alone)
    assert cells[0].get("data-text") == "core-alone" and cells[3].get("data-number") == "1000"
    assert cells[4].get("data-number") is None and cells[4].text == "–"
    assert {cell.get("aria-sort") for cell in heads} == {"none"}
    assert all(cell.find("button") is not None for cell in heads)


def test_runs_with_other_scores_have_other_columns(tmp_path: Path) -> None:
    paths = [example_runs.run(tmp_path, "a"), example_runs.run(tmp_path, "b", recipe="images", score="accuracy")]
    head, *body = rows(section("levels", paths))
    assert head[2:4] == ["BLEU", "accuracy"] and [row[2:4] for row in body[1:3]] == [["30.12", "–"], ["–", "21.50"]]


def test_unfinished_run_is_named_and_shown_as_far_as_it_is(tmp_path: Path) -> None:
    half = example_runs.run(tmp_path, "half", ends=False)
    part = section("levels", [half])
    assert rows(part) == [
        ["level", "validation loss", "updates"],
        ["core", "0.6897", "10"],
        ["full", "0.6897", "10"],
    ]
    (warning,) = texts(part, "p")
    assert warning.startswith("half is not finished: 20 steps so far, epoch 2 of 4.")
    assert f"partialsgd resume {half}" in warning and texts(section("runs", [half]), "li")[0].endswith("· not finished")
    both = rows(section("levels", [half, example_runs.run(tmp_path)]))
    assert both[1] == ["half", "core", "–", "0.6897", "–", "–", "–", "10", "–"]


def test_diverged_run_is_not_said_to_continue(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, "gone", ends=False)
    (path / FAILED).write_text('{"error": "the loss is nan"}')
    assert texts(section("levels", [path]), "p") == ["gone diverged after 20 steps: the loss is nan"]
    assert texts(section("runs", [path]), "li")[0].endswith("· diverged")
    (path / "metrics.jsonl").unlink()
    assert texts(section("levels", [path]), "p") == ["gone diverged after 0 steps: the loss is nan"]


def test_run_without_a_step_has_no_table(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, "new", ends=False)
    (path / "metrics.jsonl").unlink()
    part = section("levels", [path])
    assert not list(part.iter("table")) and "new has no steps yet" in texts(part, "p")[0]


def test_level_without_updates_is_explained(tmp_path: Path) -> None:
    part = section("levels", [example_runs.run(tmp_path, updates={"core": 40})])
    assert rows(part)[2][5] == "0" and "was not trained by steps of its own" in texts(part, "p")[1]


def test_head_shows_the_time_with_evaluations_if_it_is_known(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, "done")
    before = words(section("runs", [path]))
    example_runs.write_summary(path, {**json.loads((path / "summary.json").read_text()), "wall": 150.0})
    assert before == "translation · alternating · seed 0 · trains core and full · 40 steps · 1 min 30 s of training"
    assert words(section("runs", [path])) == f"{before}, 2 min 30 s with evaluations"


def test_head_counts_the_steps_of_the_summary_if_the_log_has_fewer(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, "thinned")
    example_runs.write_steps(path, [example_runs.step(39, ["core", "full"], 40)])
    assert " · 40 steps · " in words(section("runs", [path]))


def test_lead_of_one_run_says_how_good_its_levels_are_and_what_they_cost(tmp_path: Path) -> None:
    joint, core, _ = example_runs.three(tmp_path)
    assert lead([joint]) == (
        "core reaches BLEU 21.50 with 1,000 parameters, 10 % of the full network. full reaches BLEU 30.12 with 10,000 "
        "parameters. One run for 2 levels took 2.20 × 10¹¹ FLOPs and 1 min 30 s. Training each level alone would take "
        "4.40 × 10¹¹ FLOPs, 2 times as many (computed for the same number of epochs)."
    )
    assert lead([core]) == (
        "core reaches BLEU 20.00 with 1,000 parameters. The training took 4.00 × 10¹⁰ FLOPs and 1 min 30 s."
    )


def test_lead_of_several_runs_names_the_best_run_of_each_level(tmp_path: Path) -> None:
    paths = [*example_runs.three(tmp_path), example_runs.run(tmp_path, "half", ends=False)]
    assert lead(paths) == (
        "The best of each level: core, BLEU 21.50 (joint), full, BLEU 30.12 (joint). joint: One run for 2 levels took "
        "2.20 × 10¹¹ FLOPs and 1 min 30 s. Training each level alone took 4.40 × 10¹¹ FLOPs, 2 times as many, and "
        "3 min. BLEU of joint minus separate training: core +1.5, full +0."
    )
