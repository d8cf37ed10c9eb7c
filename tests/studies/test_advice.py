"""The table of cases in docs/which_size.md: each row speaks of runs that a study makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import advice, which_size
from studies.advice import ADVICE, Trained
from studies.trained_start.train import FILE, TRAINED_RATE
from studies.trained_start.ways import AXES, CORE_ALONE, FULL_ALONE, JOINT, LENGTHS
from studies.worth.plans import Plan, plans
from tests.studies.test_trained_start import row


def test_every_case_names_runs_that_a_study_makes() -> None:
    known = {(plan.name, ratio) for plan in plans("a", "b").values() if isinstance(plan, Plan) for ratio in plan.ratios}
    for each in ADVICE:
        if isinstance(each.runs, Trained):
            assert each.runs.axis in AXES and each.runs.length in LENGTHS and each.runs.way in JOINT
        else:
            assert each.runs in known


def test_a_case_says_how_much_better_the_stored_runs_are_and_is_left_out_without_them(tmp_path: Path) -> None:
    assert list(advice._rows(tmp_path)) == []
    runs = ADVICE[-2].runs
    assert isinstance(runs, Trained)
    known: dict[str, Any] = {"axis": runs.axis, "length": runs.length, "text": "t abc", "settings": "s"}
    for seed, gain in enumerate((0.5, 0.25)):
        row(CORE_ALONE, seed, test={"core": 2.0}, **known).save(tmp_path / FILE.name)
        row(runs.way, seed, test={"core": 2.0 - gain, "full": 1.5}, **known).save(tmp_path / FILE.name)
    assert list(advice._rows(tmp_path)) == [], "the full network alone is not trained yet"
    for seed in (0, 1):
        row(FULL_ALONE, seed, test={"full": 1.5}, **known).save(tmp_path / FILE.name)
    changed = {"rate": 2 * TRAINED_RATE, "full_rate": TRAINED_RATE, "steps": 1200, **known}
    row(runs.way, 1, test={"core": 1.75, "full": 1.5}, **changed).save(tmp_path / FILE.name)
    ((case, _, steps, rate, core, full, seeds),) = advice._rows(tmp_path)
    assert case == ADVICE[-2].case and seeds == "2"
    assert steps == "9 to 1,200" and rate == "2 to 33 × the first, full 1 ×"
    assert core == "+0.375 ± 1.6 bits" and full == "+0 ± 0 bits"


def test_alone_is_ahead_where_the_mean_over_common_seeds_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(**alone: Any) -> dict[str, Any]:
        return {"alone": alone, "jointly": {"scores": {"0": 2.0, "1": 3.0}}}

    of_networks = [
        (("a", "1/4", "core"), lines(scores={"0": 2.5, "2": 0.0}, equal_flops={})),  # ahead with the seed 0
        (("a", "1/4", "full"), lines(scores={"0": 1.5, "1": 3.25}, equal_flops={"1": 3.5})),  # behind by the mean
        (("b", "1/4", "full"), {"alone": {"scores": {}, "equal_flops": {}}}),  # not trained jointly
    ]
    monkeypatch.setattr(which_size, "_lines_by_network", lambda: of_networks)
    assert which_size.alone_is_ahead("scores") == (1, 2)
    assert which_size.alone_is_ahead("equal_flops") == (1, 1)
