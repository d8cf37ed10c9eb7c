"""Over a run: the mean that means something, the maximum that may not."""

from __future__ import annotations

import math

import pytest

from partialsgd.meters.criteria import Criteria
from partialsgd.meters.summaries import highest, latest, note, summaries, times


def at_angle(cosine: float, whole: float = 2.0) -> Criteria:
    return Criteria(whole, 1.0, 1.0, 1.0, cosine)


def test_means_maxima_and_the_share_below_zero() -> None:
    memory = {}
    for cosine, whole in ((0.5, 2.0), (0.25, 4.0), (-0.5, 3.0)):
        note(memory, "core", at_angle(cosine, whole))
    note(memory, "full", at_angle(1.0, 1.0))
    found = summaries(memory)
    core = found["core"]
    assert list(found) == ["core", "full"] and core.count == 3 and core.negative == pytest.approx(1 / 3)
    assert core.mean["c_norm"] == 3 and core.max["c_norm"] == 4
    assert core.mean["c_align"] == 3 and core.max["c_align"] == math.inf, "no bound holds for a negative alignment"
    assert core.min["cosine"] == -0.5 and core.min["alpha"] == 0, "their worst case is the least"
    assert core.mean["cosine"] == pytest.approx(0.25 / 3) and found["full"].max["q"] == 1
    assert "33% negative" in str(core) and latest(memory, "core", "cosine") == -0.5
    assert latest(memory, "nobody", "cosine") is None
    assert (times(memory, "core"), times(memory, "nobody")) == (3, 0)
    assert highest(memory, "core", "c_norm") == 4 and math.isnan(highest(memory, "nobody", "c_norm"))


def test_the_steepest_secant_and_the_longest_perturbation_are_kept() -> None:
    memory = {}
    for moved in (0.0, 0.5, 2.0):  # ‖G̃ − G‖ = 1
        note(memory, "core", Criteria(2.0, 1.0, 1.0, 1.0, 0.5, moved, 1.0))
    assert highest(memory, "core", "secant") == pytest.approx(2) and latest(memory, "core", "secant") == 0.5
    assert highest(memory, "core", "bounded_perturbation") == 2
    assert summaries(memory)["core"].mean["secant"] == pytest.approx(1.25), "nothing was moved at the first"


def test_near_a_stationary_core_the_mean_is_finite_where_the_maximum_is_not() -> None:
    """Erratum E22."""
    memory = {}
    for masked in (1.0, 0.5, 0.0):
        note(memory, "core", Criteria(2.0, masked, masked, masked, masked * masked))
    core = summaries(memory)["core"]
    assert core.max["c_norm"] == math.inf and core.mean["c_norm"] == 3
    assert core.mean["c_align"] == 1 and core.max["c_align"] == 1, "what is not a number is in neither"
