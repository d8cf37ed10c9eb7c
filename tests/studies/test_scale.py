"""The model of step times: its limits, and that a fit finds what made the numbers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from partialsgd.distributed.reducers import _bucket_size
from studies import results
from studies.scale import page
from studies.scale.model import (
    Communication,
    Fit,
    Link,
    MeasuredStep,
    Sample,
    all_reduce,
    bucket_bytes,
    fit_link,
    fit_overlap,
    mean_error,
    messages_of,
    predict,
    step_seconds,
)


def test_an_all_reduce_by_hand() -> None:
    link = Link(rate=1e9, latency=1e-3, efficiency=0.5, handling=1e-9)
    assert all_reduce(link, 1, 1e9) == (0.0, 0.0)
    # 4 workers: 3/2 of 1 MB over half a Gbit/s, and 6 rounds for each of two messages; two workers share a processor
    waiting, handling = all_reduce(link, 4, 1e6, messages=2, crowding=2.0, tree=False)
    assert (waiting, handling) == (pytest.approx(1.5 * 8e6 / 5e8 + 12e-3), pytest.approx(1.5e6 * 1e-9 * 2))
    # 1,024 workers: twice the bytes in 20 rounds are faster than 2,046 rounds
    assert all_reduce(link, 1024, 1e6) == (pytest.approx(2 * 8e6 / 5e8 + 20e-3), pytest.approx(2e-3))
    assert all_reduce(link, 2, 1e6) == all_reduce(link, 2, 1e6, tree=False)


def test_only_waiting_hides_behind_the_backward_pass() -> None:
    for compute, waiting, handling, overlap in itertools.product((0.1, 1.0), (0, 0.01, 5.0), (0, 0.02), (0, 0.5, 1.0)):
        seconds = step_seconds(compute, Communication(waiting, handling), overlap)
        assert max(compute, waiting) + handling <= seconds <= compute + waiting + handling
    assert step_seconds(0.3, Communication(1.0, 0.1), 1.0) == pytest.approx(0.3 + 1.1 - 0.2)


def test_messages_are_the_buckets_of_data_parallel() -> None:
    for size in (1 << 18, 24_000_000, 100_000_000, 1_400_000_000):
        parameter = torch.nn.Parameter(torch.empty(size // 4, device="meta"))
        assert bucket_bytes(size) == _bucket_size([parameter]) << 20
    assert messages_of(24_000_000) == 23


CASES = list(itertools.product((1e8, 1e9), (2, 4), (1e5, 1e6, 1e7)))
TRUE = Fit(efficiency=0.8, latency=2e-3, handling=3e-9, overlap=0.4)


def crowding(workers: int) -> float:
    return max(1.0, workers / 2)


def seconds_of(rate: float, workers: int, size: float) -> float:
    return all_reduce(TRUE.link(rate), workers, size, crowding=crowding(workers), tree=False).seconds


def true_step(rate: float, workers: int, size: float) -> MeasuredStep:
    step = MeasuredStep(rate, workers, crowding(workers), size, 0.2, 0.0)
    return step._replace(seconds=predict(step, TRUE))


def test_a_fit_finds_the_link_and_the_overlap_that_made_the_numbers() -> None:
    fit = fit_link([Sample(rate, n, crowding(n), size, seconds_of(rate, n, size)) for rate, n, size in CASES])
    assert fit == (pytest.approx(0.8), pytest.approx(2e-3), pytest.approx(3e-9), 0.0)
    steps = [true_step(*case) for case in CASES]
    fit = fit_overlap(steps, fit)
    assert fit.overlap == pytest.approx(0.4) and mean_error(steps, fit) == pytest.approx(0, abs=1e-6)
    assert predict(steps[0], fit._replace(overlap=0.0)) > steps[0].seconds


def test_a_fit_has_nothing_negative() -> None:
    """All-reduces that are faster over the faster link than the link itself allows: no handling explains that."""
    samples = [Sample(rate, 2, 1.0, size, 8 * size / rate * (1.0 if rate == 1e8 else 0.9)) for rate, _, size in CASES]
    fit = fit_link(samples)
    assert fit.handling == 0.0 and fit.latency >= 0.0 and 0.9 < fit.efficiency < 1.2


def record(workers: int, rate: float) -> dict[str, Any]:
    """Make the measurements of a machine of two processors, of which the model is true."""
    about = {"link": f"{rate:.0e}", "rate": rate, "workers": workers, "processors": 2, "date": "2026-01-01"}
    made = {f"all-reduce {int(size)}": seconds_of(rate, workers, size) for size in (1e5, 1e6, 1e7)}
    for level, size in (("full", 2e7), ("core", 4e6)):
        step = true_step(rate, workers, size)
        made |= {f"bytes Nest {level}": size, f"compute Nest {level}": 0.2, f"step Nest {level}": step.seconds}
    return {**about, "torch": "2", **made}


def test_the_page_fits_to_two_workers_and_checks_on_four(tmp_path: Path) -> None:
    file = tmp_path / "scale.jsonl"
    assert "python -m studies.scale" in page.sections(file)
    two, four = ([record(workers, rate) for rate in (1e8, 1e9)] for workers in (2, 4))
    results.write(file, two)
    assert "nothing checks the fit" in page.sections(file)
    results.write(file, [*two, *four])
    text = page.sections(file)
    fitted, checked = text.index("**Fitted to 2 workers only:**"), text.index("**Checked on 4 workers**")
    assert fitted < checked and "gradients get 80 % of a link's rate" in text and "40 % of the backward pass" in text
    assert "the mean error of their predicted steps is 0 %, the largest 0 %" in text, "the model is true of them"
    results.write(file, [*two, *({**each, "step Nest full": 2 * each["step Nest full"]} for each in four)])
    slower = page.sections(file)
    assert "40 % of the backward pass" in slower and "is 25 %, the largest 50 %" in slower, "what checks is not fitted"
    assert "Predicted, not measured" in text
    page.draw(tmp_path, file)
    assert 0 < (tmp_path / "scale.png").stat().st_size < 80_000


def test_a_core_step_is_never_predicted_slower_than_a_full_one() -> None:
    for workers, gbits in itertools.product(page.WORKERS, page.GBITS):
        full, core = (page.step_at(workers, gbits, 0.9, is_core=is_core) for is_core in (False, True))
        assert core < full


def test_the_legend_covers_no_line() -> None:
    drawn = page.figure(0.9)
    assert not any(axes.get_legend() for axes in drawn.axes), "it stands outside of the axes"
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert labels == ["2 workers", "8 workers", "64 workers", "1,024 workers", "full", "alternating", "core"]
    assert len(drawn.axes[0].lines) == len(page.WORKERS) * 3
