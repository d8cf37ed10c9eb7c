"""The model of step times: its limits, and that a fit finds what made the numbers."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from studies import results
from studies.scale import page
from studies.scale.model import (
    Link,
    MeasuredStep,
    Sample,
    all_reduce_seconds,
    fit_link,
    fit_overlap,
    mean_error,
    predict,
    step_seconds,
)


def test_an_all_reduce_by_hand() -> None:
    link = Link(rate=1e9, latency=1e-3, efficiency=0.5)
    assert all_reduce_seconds(link, 1, 1e9) == 0.0
    # 4 workers: 3/2 of 1 MB over half a Gbit/s, and 6 rounds for each of two messages
    assert all_reduce_seconds(link, 4, 1e6, messages=2, tree=False) == pytest.approx(1.5 * 8e6 / 5e8 + 12e-3)
    # 1,024 workers: twice the bytes in 20 rounds are faster than 2,046 rounds
    assert all_reduce_seconds(link, 1024, 1e6) == pytest.approx(2 * 8e6 / 5e8 + 20e-3)
    assert all_reduce_seconds(link, 2, 1e6) == all_reduce_seconds(link, 2, 1e6, tree=False)


def test_communication_hides_behind_the_backward_pass_and_never_costs_less_than_nothing() -> None:
    for compute, communication, overlap in itertools.product((0.1, 1.0), (0.0, 0.01, 5.0), (0.0, 0.5, 1.0)):
        seconds = step_seconds(compute, communication, overlap)
        assert max(compute, communication) <= seconds <= compute + communication
    assert step_seconds(0.3, 1.0, 1.0) == pytest.approx(0.3 + 1.0 - 0.2)


def test_a_fit_finds_the_link_and_the_overlap_that_made_the_numbers() -> None:
    cases = list(itertools.product((1e8, 1e9), (2, 4), (1e5, 1e6, 1e7)))
    links = {rate: Link(rate, 2e-3, 0.8) for rate in (1e8, 1e9)}
    samples = [Sample(rate, n, size, all_reduce_seconds(links[rate], n, size, tree=False)) for rate, n, size in cases]
    efficiency, latency = fit_link(samples)
    assert (efficiency, latency) == (pytest.approx(0.8), pytest.approx(2e-3))
    steps = []
    for rate, n, size in cases:
        communication = all_reduce_seconds(links[rate], n, size, tree=False)
        steps.append(MeasuredStep(rate, n, size, 0.2, step_seconds(0.2, communication, 0.4)))
    assert fit_overlap(steps, efficiency, latency) == pytest.approx(0.4)
    assert mean_error(steps, efficiency, latency, 0.4) == pytest.approx(0, abs=1e-6)
    assert predict(steps[0], efficiency, latency, 0.0) > steps[0].seconds


def test_the_page_shows_predicted_beside_measured(tmp_path: Path) -> None:
    file = tmp_path / "scale.jsonl"
    assert "python -m studies.scale" in page.sections(file)
    record = {"link": "100mbit", "rate": 1e8, "workers": 2, "date": "2026-01-01", "torch": "2"}
    record |= {"all-reduce 1000000": 0.1, "all-reduce 4000000": 0.4, "compute LowRank(1/32) core": 0.1}
    record |= {"bytes LowRank(1/32) core": 1e6, "step LowRank(1/32) core": 0.2}
    results.write(file, [record])
    text = page.sections(file)
    assert "| 100mbit, 2 workers, LowRank(1/32), core | 1.0 | 100 | 200 | 200 | -0 % |" in text.replace("+0 %", "-0 %")
    assert "gradients get 80 % of a link's rate" in text and "Predicted, not measured" in text
    page.draw(tmp_path, file)
    assert 0 < (tmp_path / "scale.png").stat().st_size < 80_000


def test_a_core_step_is_never_predicted_slower_than_a_full_one() -> None:
    for workers, gbits in itertools.product(page.WORKERS, page.GBITS):
        full, core = (page.step_at(workers, gbits, 0.9, is_core=is_core) for is_core in (False, True))
        assert core < full
