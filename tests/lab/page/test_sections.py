"""Head of the page, levels, cost, outputs and configuration: for one run, for several, and for unfinished runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.page import cost, formatting
from partialsgd.lab.page.cost import Comparison
from partialsgd.lab.page.run_files import read_runs
from partialsgd.lab.runs.run import FAILED
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


def test_runs_with_other_scores_have_other_columns_and_untrained_levels_are_explained(tmp_path: Path) -> None:
    images = {"recipe": "images", "score": "accuracy", "updates": {"core": 40}}
    part = section("levels", [example_runs.run(tmp_path, "a"), example_runs.run(tmp_path, "b", **images)])
    head, *body = rows(part)
    assert "was not trained by steps of its own" in texts(part, "p")[1] and body[3][-2] == "0"
    assert head[2:4] == ["BLEU", "accuracy"] and [row[2:4] for row in body[1:3]] == [["30.12", "–"], ["–", "21.50"]]


def test_unfinished_run_is_named_and_shown_as_far_as_it_is(tmp_path: Path) -> None:
    half = example_runs.run(tmp_path, "half", ends=False)
    part = section("levels", [half])
    assert rows(part) == [
        ["level", "validation loss", "updates"],
        ["core", "0.6897", "10"],
        ["full", "0.6897", "10"],
    ]
    assert texts(section("outputs", [half]), "p") == ["Sample outputs are shown when a run is finished."]
    (warning,) = texts(part, "p")
    assert warning.startswith("half is not finished: 20 steps so far, epoch 2 of 4.")
    assert f"partialsgd resume {half}" in warning and texts(section("runs", [half]), "li")[0].endswith("· not finished")
    both = rows(section("levels", [half, example_runs.run(tmp_path)]))
    assert both[1] == ["half", "core", "–", "0.6897", "–", "–", "–", "10", "–"]


def test_diverged_run_and_run_without_steps_are_not_said_to_continue(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, "gone", ends=False)
    (path / FAILED).write_text('{"error": "the loss is nan"}')
    assert texts(section("levels", [path]), "p") == ["gone diverged after 20 steps: the loss is nan"]
    assert texts(section("runs", [path]), "li")[0].endswith("· diverged")
    (path / "metrics.jsonl").unlink()
    assert texts(section("levels", [path]), "p") == ["gone diverged after 0 steps: the loss is nan"]
    (path / FAILED).unlink()
    part = section("levels", [path])
    assert not list(part.iter("table")) and texts(part, "p") == ["gone has no steps yet, so there is nothing to show."]
    assert texts(section("training", [path]), "p") == ["No training step is logged yet."]


def test_head_shows_the_steps_of_the_summary_and_the_time_with_evaluations(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, "done")
    example_runs.write_steps(path, [example_runs.step(39, ["core", "full"], 40)])  # the log may have fewer steps
    before = words(section("runs", [path]))
    example_runs.write_summary(path, {**json.loads((path / "summary.json").read_text()), "wall": 150.0})
    assert before == "translation · alternating · seed 0 · trains core and full · 40 steps · 1 min 30 s of training"
    assert words(section("runs", [path])) == f"{before}, 2 min 30 s with evaluations"


def test_lead_says_how_good_the_levels_are_and_what_they_cost_or_the_best_run_of_each(tmp_path: Path) -> None:
    joint, core, full = example_runs.three(tmp_path)
    assert lead([joint]) == (
        "core reaches BLEU 21.50 with 1,000 parameters, 10 % of the full network. full reaches BLEU 30.12 with 10,000 "
        "parameters. One run for 2 levels took 2.20 × 10¹¹ FLOPs and 1 min 30 s. For the same total FLOPs, separate "
        "runs would have 20 steps each, where this one had 40. Training each level alone would take 4.40 × 10¹¹ FLOPs, "
        "2 times as many (computed for the same number of epochs)."
    )
    assert lead([core]) == (
        "core reaches BLEU 20.00 with 1,000 parameters. The training took 4.00 × 10¹⁰ FLOPs and 1 min 30 s."
    )
    assert lead([joint, core, full, example_runs.run(tmp_path, "half", ends=False)]) == (
        "The best of each level: core, BLEU 21.50 (joint), full, BLEU 30.12 (joint). joint: One run for 2 levels took "
        "2.20 × 10¹¹ FLOPs and 1 min 30 s. For the same total FLOPs, separate runs would have 20 steps each, where "
        "this one had 40. Training each level alone took 4.40 × 10¹¹ FLOPs, 2 times as many, and 3 min. BLEU of joint "
        "minus separate training: core +1.5, full +0."
    )


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


def test_short_records_are_a_table_other_results_stand_under_their_runs_and_samples_are_folded(tmp_path: Path) -> None:
    extras = {"baseline": [{"AUC": 0.99312, "n": 3}, {"n": None}], "notes": ["one", 2.5], "nearest": "BLEU 10.5"}
    part = section("outputs", [example_runs.run(tmp_path, extras=extras)])
    assert texts(part, "h3") == ["Baseline", "Notes", "Nearest"]
    assert rows(part) == [["AUC", "n"], ["0.9931", "3"], ["–", "–"]]
    assert texts(part, "li") == ["one", "2.5"] and texts(part, "p") == ["BLEU 10.5"]
    extras = {name: {"nearest": name, "notes": ["same"]} for name in ("a", "b")}
    part = section("outputs", [example_runs.run(tmp_path, name, extras=own) for name, own in extras.items()])
    assert texts(part, "h4") == ["a", "b"] == texts(part, "p")
    assert texts(part, "li") == ["same"]
    samples = [{"source": f"{k} {'long ' * 10}", "core": "", "full": "y"} for k in range(20)]
    part = section("outputs", [example_runs.run(tmp_path, "samples", extras={"samples": samples})])
    assert texts(part, "summary") == ["14 more"] and len(list(part.iter("dl"))) == 20
    answers = [words(each) for each in part.iter("dd") if each.get("class") == "output"]
    assert answers == ["(nothing)", "y"] * 20


def preset(recipe: str, settings: Any) -> dict[str, Any]:
    return {**example_runs.SETTINGS, "threads": None, "ratio": ["1/16"], "preset": settings.get("preset")}


def test_settings_that_differ_from_the_preset_come_first(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, lr=0.3, ratio=["1/4", "1/2"], out="/somewhere", threads=2)
    part = section("configuration", [path], preset)
    assert texts(part, "h3") == ["Settings that differ from the preset"]
    assert rows(part) == [["setting", "this run", "preset"], ["lr", "0.3", "0.1"], ["ratio", "1/4 1/2", "1/16"]]
    assert {row[0] for row in rows(part, 1)} >= {"out", "threads", "lr", "seed", "alone"}
    assert rows(part, 2) == [["", "version"], ["torch", "2.13"], ["data (sha256)", "0f" * 32]]
    unchanged = section("configuration", [example_runs.run(tmp_path, "unchanged")], preset)
    assert texts(unchanged, "p") == ["All settings are those of the preset."]


def test_runs_without_a_preset_are_compared_with_each_other(tmp_path: Path) -> None:
    a = example_runs.run(tmp_path, "a", setting_of_another_recipe=5)
    b = example_runs.run(tmp_path, "b", recipe="images", lr=0.3, seed=1)
    (b / "config.json").write_text((b / "config.json").read_text().replace("2.13", "2.6"))
    part = section("configuration", [a, b])
    assert texts(part, "h3") == ["Settings that differ between the runs"]
    assert rows(part) == [["setting", "a", "b"], ["seed", "0", "1"], ["lr", "0.1", "0.3"]]
    assert rows(part, 2)[:2] == [["", "a", "b"], ["torch", "2.13", "2.6"]]
    alone = section("configuration", [a])
    assert texts(alone, "h3") == texts(alone, "p") == []


CASES: dict[Callable[..., str], dict[Any, str]] = {
    formatting.number: {30.125: "30.12", -0.5: "−0.5", 1234567: "1,234,567", 1e-9: "1.00 × 10⁻⁹", None: "–"},
    partial(formatting.number): {math.inf: "∞", -math.inf: "−∞", math.nan: "undefined"},
    partial(formatting.score, largest=30.1): {21.5: "21.50", 5.35: "5.35", None: "–", math.nan: "undefined"},
    partial(formatting.score, largest=1.0): {0.5: "0.5000", 1.0: "1.0000"},
    formatting.scientific: {7.0718e9: "7.07 × 10⁹", 0.0: "0", 6896.2: "6,896", 999.4: "999", math.inf: "∞", None: "–"},
    formatting.percent: {0.25: "25 %"},
    formatting.duration: {
        0.002: "2 ms",
        4.94: "4.94 s",
        200: "3 min 20 s",
        180: "3 min",
        7500: "2 h 5 min",
        7200: "2 h",
    },
    partial(formatting.plural, noun="step"): {1: "1 step", 2000: "2,000 steps"},
    formatting.join_names: {("a", "b", "c"): "a, b and c", ("a",): "a", (): ""},
}


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [(write, value, expected) for write, cases in CASES.items() for value, expected in cases.items()],
)
def test_value_is_written_as_expected(write: Callable[[Any], str], value: Any, expected: str) -> None:
    assert write(value).replace("\N{NO-BREAK SPACE}", " ") == expected


def compare(*paths: Path) -> Comparison:
    """Compare the first run with the others."""
    return cost.compare(read_runs(paths))[0]


def separate_runs(*paths: Path) -> list[str | None]:
    return [one.run for one in compare(*paths).separate]


def test_cost_of_levels_without_a_run_is_computed_for_as_many_steps(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, steps=40)
    comparison = compare(path)
    assert (comparison.flops, comparison.seconds, comparison.is_computed) == (4.4e11, None, True)
    part = section("cost", [path])
    (_, *budgets), trained = rows(part), rows(part, 1)
    assert [(name, steps, flops) for name, _, steps, flops in budgets] == [
        ("--budget sum", "core 20, full 20", "2.20 × 10¹¹"),
        ("--budget epochs", "core 40, full 40", "4.40 × 10¹¹"),
        ("--budget each", "core 220, full 22", "4.40 × 10¹¹"),
    ]
    assert [answer for _, answer, _, _ in budgets] == list(cost.QUESTIONS.values())
    assert trained[2] == ["core", "alone, computed", "–", "40", "4.00 × 10¹⁰", "–"]
    assert trained[5:] == [
        ["all", "joint", "–", "40", "2.20 × 10¹¹", "1 min 30 s"],
        ["all", "alone", "–", "80", "4.40 × 10¹¹", "–"],
    ]
    sentences, note = texts(part, "p")
    assert "would take 4.40 × 10¹¹ FLOPs, 2 times as many" in sentences and "Computed means" in note
    assert "For the same total FLOPs, separate runs would have 20 steps each, where this one had 40." in sentences
    assert "With the same number of updates for each level, the FLOPs would be about the same" in note


def test_cost_of_levels_with_a_run_is_that_of_the_run(tmp_path: Path) -> None:
    paths = example_runs.three(tmp_path)
    comparison = compare(*paths)
    assert (comparison.flops, comparison.seconds, comparison.is_computed) == (4.4e11, 180.0, False)
    joint, core, full = paths
    assert compare(joint, full).is_computed and compare(joint, full).seconds is None
    assert texts(section("cost", [core, full]), "p") == ["No finished run on this page trained several levels."]
    part = section("cost", paths)
    assert rows(part, 1)[2] == ["core", "alone, core-alone", "20.00", "40", "4.00 × 10¹⁰", "1 min 30 s"]
    assert "2 times as many, and 3 min" in texts(part, "p")[0] and "Computed" not in texts(part, "p")[1]


@pytest.mark.parametrize(
    "other",
    [{"recipe": "images"}, {"d_model": 99}, {"ends": False}, {"levels": ["core", "full"]}, {"size": 9999}],
    ids=lambda other: next(iter(other)),
)
def test_run_of_another_network_is_not_compared(tmp_path: Path, other: dict[str, object]) -> None:
    joint = example_runs.run(tmp_path, d_model=16)
    options = {**example_runs.PLAIN, "d_model": 16, **other}
    path = example_runs.run(tmp_path, "other", **options)
    if "size" in other:
        path.joinpath("summary.json").write_text((path / "summary.json").read_text().replace("10000,", "9999,"))
    assert separate_runs(joint, path) == [None, None]


def test_most_similar_run_is_taken_if_several_train_the_same_level(tmp_path: Path) -> None:
    """The number of epochs counts more than the initialization, and that more than the seed; data may be moved."""
    joint = example_runs.run(tmp_path, epochs=8, init="zero", seed=0, data="here/corpus")
    settings = {
        "a-longer": {"epochs": 12, "init": "zero", "seed": 0},
        "b-other-start": {"epochs": 8, "init": "svd", "seed": 0},
        "c-other-seed": {"epochs": 8, "init": "zero", "seed": 1},
    }
    others = [
        example_runs.run(tmp_path, name, **example_runs.PLAIN, data="there/corpus", **own)
        for name, own in settings.items()
    ]
    assert separate_runs(joint, *others)[-1] == "c-other-seed"
    joint_seed_1 = example_runs.run(tmp_path, "joint1", epochs=8, init="zero", seed=1, data="here/corpus")
    same_seed = example_runs.run(tmp_path, "d", **example_runs.PLAIN, epochs=8, init="zero", seed=0)
    assert separate_runs(joint_seed_1, same_seed, *others)[-1] == "c-other-seed"


def test_a_network_alone_lacks_the_options_of_joint_training(tmp_path: Path) -> None:
    joint = example_runs.run(tmp_path, full="own", level_budget="flops=1/4", part_ways=0.15, state="shared")
    alone = {"full": "sum", "level_budget": None, "part_ways": 0.0, "distill": None, "state": "shared"}
    assert separate_runs(joint, example_runs.run(tmp_path, "alone", **example_runs.PLAIN, **alone))[-1] == "alone"


def test_slimmable_run_updates_every_level_at_each_step(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, updates={"core": 40, "full": 40})
    assert compare(path).flops == compare(path).joint.flops
    assert "same number of updates" not in " ".join(texts(section("cost", [path]), "p"))
