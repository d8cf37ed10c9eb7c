"""What the benchmark of the criteria races is what it says, and a period is one measured step and the rest of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.criteria import IN_A_ROW, NEVER, amortised, runner
from benchmarks.harness import Times, Track
from torch import Tensor, nn

import partialsgd as ps
from benchmarks import baselines, criteria, families


def test_a_period_has_one_measured_step() -> None:
    times = Times({"without": [2.0, 4.0, 1.0], "counting": [2.0, 4.0, 2.0], "measured": [4.0, 12.0, 4.0]})
    assert amortised(times, 1).value == 3.0  # the middle one of 2, 3 and 4
    assert amortised(times, 4).value == pytest.approx((3 * 4 + 12) / (4 * 4))
    assert amortised(times, 10**9).value == pytest.approx(1.0)


def test_a_contestant_makes_as_many_passes_as_it_says() -> None:
    passes = 0
    plain = baselines.layers(8, 16, 4, batch=4)

    def forward() -> Tensor:
        nonlocal passes
        passes += 1
        return plain.forward()

    def counted(meter: ps.CriteriaMeter | None, steps: int) -> list[int]:
        nonlocal passes
        run, found = runner(replace(plain, forward=forward), ps.methods.dropout(0.9), meter, steps), []
        for _ in range(2):
            passes = 0
            run()
            found.append(passes)
        return found

    assert counted(None, 3) == [3, 3]
    assert counted(ps.CriteriaMeter(1), 3) == [6, 6]
    assert counted(ps.CriteriaMeter(IN_A_ROW), IN_A_ROW) == [IN_A_ROW + 1] * 2
    assert counted(ps.CriteriaMeter(NEVER), 3) == [4, 3]


def _tiny(*, dropout: float = 0.0) -> nn.Module:
    return families._marian(layers=1, width=32, dropout=dropout)


def test_every_figure_has_its_limit_and_dropout_keeps_one_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteria, "TOKENS", 32)
    monkeypatch.setattr(criteria, "IN_A_ROW", 2)
    monkeypatch.setattr(families, "small_transformer", _tiny)
    figures = {figure.what: figure for figure in criteria.measure(Track(rounds=1, warm_up=0, threads=1))}
    limits = [figure.limit for figure in figures.values() if figure.limit is not None]
    assert sorted(limits) == sorted([2.1, 1.10, 1.03] * 4 + [1.1] * 4) and len(figures) == 21
    for what, figure in figures.items():
        if what.startswith("extra memory") and "dropout(0.9)" in what:
            assert figure.measured.value == pytest.approx(1.0, abs=0.1)  # G, while G̃ is taken
