"""What the theorem makes of measured numbers, and where it has nothing to say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from partialsgd.lab.page import readings
from partialsgd.lab.page.readings import Reading
from partialsgd.lab.page.stored import read
from tests.lab.page import made
from tests.logging.made import measured


def reading(*found: dict[str, float], alpha: float = 1.0) -> Reading:
    return Reading("core", {t: {"alpha": alpha, **one} for t, one in enumerate(found)})


@pytest.mark.parametrize("q", [1.0, 1.5, 2.5, 40.0])
def test_the_bound_asks_for_q_squared_to_q_to_the_fourth_times_the_iterations(q: float) -> None:
    assert readings.more_iterations(q) == pytest.approx((q**2, q**4))


def test_a_q_that_is_one_less_a_rounding_is_that_of_sgd_and_an_infinite_one_has_no_bound() -> None:
    assert readings.more_iterations(1 - 1e-9) == (1.0, 1.0)
    assert readings.more_iterations(math.inf) == (math.inf, math.inf)


def test_the_words_say_what_the_medians_are() -> None:
    said = readings.words(reading(measured(2.0, 0.5, 2.0), alpha=0.25), "alternating")
    assert said["c_norm"].replace("\xa0", " ") == "The step's mask leaves 50 % of the gradient's length."
    assert said["c_sim"] == "The gradient that the step uses is 2 times longer than the masked one at x."
    assert said["c_align"] == "The two gradients are 60° apart."
    assert "allows 25\xa0% of SGD's step size; this run does not scale" in said["alpha"]
    assert "16 times the iterations of SGD" in said["q"] and "256 times" in said["q"]
    assert "this run scales its steps so" in readings.words(reading(measured()), "scaled_by_alpha(sam)")["alpha"]


def test_a_negative_alignment_is_beyond_every_bound_and_not_a_small_number() -> None:
    found = reading(measured(), measured(c_align=-3.0), measured(c_align=-3.0))
    assert found.median("c_align") == math.inf and (found.negative, found.unbounded) == (2, 2)
    said = readings.words(found, "")
    assert said["c_align"] == "Most often the two gradients point apart."
    assert said["q"] == "There is no bound on the number of iterations."
    assert readings.verdict(found).startswith("No bound: at 2 of 3 measured steps the alignment was negative")


def test_the_largest_q_is_told_with_its_step() -> None:
    found = reading(measured(1.5), measured(3.0), measured(2.0), measured(1.0, 1.0, -1.0))
    assert found.worst == (1, 3.0)
    assert "3 at step 1, the largest finite one of 4 measurements. It stands for 9 to 81" in readings.verdict(found)


def test_zero_over_zero_is_undefined_and_not_a_sentence_about_nothing() -> None:
    nothing = measured(math.nan, math.nan, math.nan) | {"q": math.nan}
    assert set(readings.words(reading(nothing, alpha=math.nan), "").values()) == {"Undefined, as 0 / 0."}
    assert readings.verdict(reading(nothing)) == ""
    assert reading(nothing, measured(2.0)).median("c_norm") == 2.0


def test_halves_are_of_the_measurements_in_their_order() -> None:
    found = Reading("core", {9: {"q": 4.0}, 0: {"q": 1.0}, 5: {"q": 3.0}, 1: {"q": 2.0}})
    assert (found.median("q", 0), found.median("q", 1), found.median("q")) == (1.5, 3.5, 2.5)


def test_steps_of_plain_training_are_told_from_the_others(tmp_path: Path) -> None:
    (run,) = read([made.run(tmp_path)])
    found = {one.name: one for one in readings.readings(run)}
    assert found["full"].is_plain and not found["core"].is_plain and found["core"].negative == 1


def test_alternating_training_has_a_bound_for_the_whole_network_alone(tmp_path: Path) -> None:
    (run,) = read([made.run(tmp_path, updates={"core": 30, "full": 10})])
    assert "at most 4 times that of SGD" in readings.alternating(run)
    (other,) = read([made.run(tmp_path, "other", method="slimmable")])
    assert readings.alternating(other) == ""


def test_limits_name_what_was_done_in_these_runs(tmp_path: Path) -> None:
    path = made.run(tmp_path, measure_batches=8)
    plain = " ".join(readings.limits(read([path])))
    assert "(of 8 batches at most)" in plain and "E21" in plain and "Dropout" not in plain and "left out" not in plain
    lines = [made.step(t, ["full"], 4, False, "BLEU") for t in range(2)]
    lines[1]["criteria"] = [made.criteria("core", 1, quiet=True, left_out=3, probe="core", alerts=["c_norm grows"])]
    (path / "metrics.jsonl").write_bytes(b"".join(map(made.line, lines)))
    (run,) = read([path])
    said = " ".join(readings.limits([run]))
    assert "Dropout was off" in said and "left out" in said and "A probe is not what was trained" in said
    assert readings.alerts(readings.readings(run)) == ["c_norm grows"]
