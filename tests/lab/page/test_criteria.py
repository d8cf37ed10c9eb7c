"""The section of criteria: charts, what the medians mean, the bounds of Theorem 1, and their limits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.page import criteria
from partialsgd.lab.page.criteria import LevelCriteria
from partialsgd.lab.page.run_files import read_runs
from partialsgd.logging.metrics_log import Record
from tests.lab.page import example_runs
from tests.lab.page.page_parts import section, texts, words


def measurement(c_norm: float = 1.0, c_sim: float = 1.0, c_align: float = 1.0, **more: Any) -> Record:
    q = c_norm * max(c_sim, c_align) if c_align > 0 else math.inf
    return {"level": "core", "c_norm": c_norm, "c_sim": c_sim, "c_align": c_align, "alpha": 1.0, "q": q, **more}


def level_criteria(*measurements: Record) -> LevelCriteria:
    return LevelCriteria("core", dict(enumerate(measurements)))


def write_run(folder: Path, *measurements: Record, **settings: Any) -> Path:
    """Write a run with one step of the core for each measurement."""
    path = example_runs.run(folder, **settings)
    steps = [example_runs.step(t, ["core"], len(measurements)) for t in range(len(measurements))]
    example_runs.write_steps(path, [{**step, "criteria": [one]} for step, one in zip(steps, measurements, strict=True)])
    return path


def test_section_has_four_charts_and_the_medians_of_each_level(tmp_path: Path) -> None:
    part = section("criteria", [example_runs.run(tmp_path)])
    assert [caption.split()[0] for caption in texts(part, "figcaption")] == ["c_norm", "c_sim", "c_align", "q"]
    figures = [words(figure) for figure in part.iter("figure")]
    assert "1 negative of 8" in figures[2] and "1 infinite of 8" in figures[3]
    assert texts(part, "h3") == ["core", "full"]
    medians = ["c_norm 2 → 2", "c_sim 1 → 1", "c_align 1.25 → 1.25", "α 0.8 → 0.8", "q 2.5 → 2.5"]
    assert texts(part, "dt") == medians
    paragraphs = " ".join(texts(part, "p"))
    assert "There is no bound: at 1 of 8 measured steps the alignment was negative" in paragraphs
    assert "All criteria are 1 at 8 measured steps: these were steps of plain training." in paragraphs


def test_section_without_measurements_names_the_option(tmp_path: Path) -> None:
    unmeasured = example_runs.run(tmp_path, "b", measures=False)
    part = section("criteria", [unmeasured])
    assert "--measure-every 50" in texts(part, "p")[0] and not list(part.iter("figure"))
    part = section("criteria", [example_runs.run(tmp_path, "a"), unmeasured])
    assert texts(part, "p")[-1] == "No criteria were measured in b."
    part = section("criteria", [example_runs.run(tmp_path, "plain", **example_runs.PLAIN)])
    assert not list(part.iter("figure")) and texts(part, "h3") == ["full"], "plain training needs no chart"


@pytest.mark.parametrize("q", [1.0, 1.5, 2.5, 40.0, math.inf])
def test_bound_asks_for_q_squared_to_q_to_the_fourth_times_the_iterations(q: float) -> None:
    assert criteria.iterations_factors(q) == pytest.approx([q**2, q**4])
    assert criteria.iterations_factors(1 - 1e-9) == [1.0, 1.0]  # rounding


def test_medians_are_explained(tmp_path: Path) -> None:
    part = section("criteria", [write_run(tmp_path, measurement(2.0, 0.5, 2.0, alpha=0.25))])
    assert texts(part, "dd") == [
        "The mask keeps 50 % of the gradient's length.",
        "The gradient that the step uses is 2 times longer than the masked gradient at x.",
        "The angle between the two gradients is 60°.",
        "The theorem allows 25 % of SGD's step size; this run does not scale its steps by it.",
        "The bound asks for 16 times the iterations of SGD if the noise is small (q²), and for 256 times if the noise "
        "dominates (q⁴).",
    ]
    scaled = write_run(tmp_path, measurement(2.0, 3.0), name="scaled", method="scaled_by_alpha(sam)")
    explained = texts(section("criteria", [scaled]), "dd")
    assert explained[1] == "The gradient that the step uses is 3 times shorter than the masked gradient at x."
    assert explained[2] == "The two gradients point in the same direction."
    assert explained[3].endswith("this run scales its steps by it.")


def test_negative_alignment_is_worse_than_every_bound_and_the_largest_finite_q_is_named(tmp_path: Path) -> None:
    measurements = [measurement(), measurement(c_align=-3.0), measurement(c_align=-3.0)]
    core = level_criteria(*measurements)
    assert core.medians("c_align")[0] == math.inf and (core.negative_count, core.unbounded_count) == (2, 2)
    part = section("criteria", [write_run(tmp_path, *measurements)])
    assert texts(part, "dd")[2] == "At most measured steps the two gradients point in opposite directions."
    assert texts(part, "dd")[4] == "There is no bound on the number of iterations."
    assert texts(part, "p")[2].startswith("There is no bound: at 2 of 3 measured steps the alignment was negative")
    measurements = [measurement(1.5), measurement(3.0), measurement(2.0), measurement(c_align=-1.0)]
    assert level_criteria(*measurements).largest_q == (1, 3.0)
    verdict = texts(section("criteria", [write_run(tmp_path, *measurements, name="finite")]), "p")[2]
    assert "Without those steps, the theorem uses the largest q: 3 at step 1, the largest finite value of 4" in verdict
    assert "the bound asks for 9 to 81 times the iterations" in verdict


def test_undefined_numbers_are_left_out_of_medians_in_the_order_of_steps(tmp_path: Path) -> None:
    undefined = measurement(math.nan, math.nan, math.nan, q=math.nan, alpha=math.nan)
    part = section("criteria", [write_run(tmp_path, undefined)])
    assert set(texts(part, "dd")) == {"It is undefined (0 / 0)."} and texts(part, "p")[2] == ""
    assert level_criteria(undefined, measurement(2.0)).medians("c_norm")[0] == 2.0
    unordered = LevelCriteria("core", {9: {"q": 4.0}, 0: {"q": 1.0}, 5: {"q": 3.0}, 1: {"q": 2.0}})
    assert unordered.medians("q") == [2.5, 1.5, 3.5]


def test_only_alternating_training_has_a_bound_without_q(tmp_path: Path) -> None:
    path = example_runs.run(tmp_path, updates={"core": 30, "full": 10})
    assert criteria.alternating_factor(read_runs([path])[0]) == pytest.approx(4.0)
    assert "at most 4 times the bound of SGD" in " ".join(texts(section("criteria", [path]), "p"))
    (other,) = read_runs([example_runs.run(tmp_path, "other", method="slimmable")])
    assert criteria.alternating_factor(other) is None


def test_limits_name_what_was_done_in_the_runs(tmp_path: Path) -> None:
    limits = " ".join(texts(section("criteria", [example_runs.run(tmp_path, measure_batches=8)]), "li"))
    assert "(on at most 8 batches)" in limits and "E21" in limits
    assert "Dropout" not in limits and "left out" not in limits and "probe" not in limits
    special = measurement(quiet=True, left_out=3, probe="core", alerts=["c_norm grows"])
    part = section("criteria", [write_run(tmp_path, special, special, name="special")])
    limits = " ".join(texts(part, "li"))
    assert "Dropout was off" in limits and "left out" in limits and "A probe was not trained" in limits
    assert [words(p) for p in part.iter("p") if p.get("class") == "warning"] == ["c_norm grows"]
