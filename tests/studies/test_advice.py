"""The table of cases in docs/which_size.md: each row speaks of runs that a study makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab.reproduce.paired import difference
from studies import advice, which_size
from studies.advice import ADVICE, Trained
from studies.trained_start.ways import AXES, JOINT, LENGTHS
from studies.worth.plans import Plan, plans


def test_every_case_names_runs_that_a_study_makes() -> None:
    known = {(plan.name, ratio) for plan in plans("a", "b").values() if isinstance(plan, Plan) for ratio in plan.ratios}
    for each in ADVICE:
        if isinstance(each.runs, Trained):
            assert each.runs.axis in AXES and each.runs.length in LENGTHS and each.runs.way in JOINT
            assert each.steps == str(2 * each.runs.length) and each.unit == "bits"
        else:
            assert each.runs in known


def test_a_case_without_stored_runs_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(advice._rows(tmp_path)) == []
    found = {"core": difference([-0.5, -0.25]), "full": difference([0.0, 0.0])}
    by_case = {ADVICE[-1].runs: found, ADVICE[-2].runs: {"core": found["core"]}}  # the full network is not trained yet
    monkeypatch.setattr(advice.trained_start, "differences", lambda rows, *runs: by_case.get(Trained(*runs), {}))
    monkeypatch.setattr(advice.trained_start, "rates", lambda rows, *runs: "0.1")
    ((case, _, steps, rate, core, full),) = advice._rows(tmp_path)
    assert (case, steps, rate) == (ADVICE[-1].case, ADVICE[-1].steps, "0.1")
    assert core == "-0.375 ± 1.6 bits" and full == "+0 ± 0 bits"


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
