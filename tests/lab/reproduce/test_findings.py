"""Sentences that say no more than the numbers."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pytest
from scipy import stats

from partialsgd.lab.reproduce import EXPERIMENTS, Request, findings, make_experiment
from partialsgd.lab.reproduce.findings import sentences
from partialsgd.lab.reproduce.paired import difference
from tests.lab.reproduce.made import open_folder


def line(network: str, trained: str, scores: list[float], paper: str | None = None, **more: Any) -> dict[str, Any]:
    by_seed = {str(seed): score for seed, score in enumerate(scores)}
    told = {"group": "1/8", "network": network, "trained": trained, "scores": by_seed, "paper": paper}
    return {**told, "row": f"{network} {trained}", "equal_flops": {}, "diverged": 0, **more}


def read(*lines: dict[str, Any], score: str = "BLEU", **more: Any) -> list[str]:
    return sentences({"score": score, "lines": list(lines), "sums": [], "costs": [], "grid": [], **more})


@pytest.mark.parametrize(
    ("alone", "jointly", "expected"),
    [
        (
            line("full", "alone", [30.0, 34.0], "32.48"),
            line("full", "jointly", [29.0, 34.0], "31.62 (0.13)"),
            "jointly trained it is 0.50 BLEU behind the one trained alone, of as many epochs, which 2 seeds cannot "
            "tell from chance (paper: 0.86 behind at equal epochs)",
        ),
        (  # what all runs of a seed share, like its order of batches, is no reason for doubt
            line("core", "alone", [20.0, 25.0, 30.0]),
            line("core", "jointly", [22.0, 27.1, 31.9]),
            "jointly trained it is 2.00 BLEU ahead of the one trained alone, of as many epochs",
        ),
        (
            line("core", "alone", [], "17.95 (3.65)", diverged=3),
            line("core", "jointly", [24.0, 25.0, 26.0], "24.03 (0.77)"),
            "jointly it reaches BLEU 25.00; alone, every run has diverged (3)",
        ),
        (  # only seeds that both have are compared
            {**line("core", "alone", [], diverged=1), "scores": {"1": 20.0, "2": 20.0}},
            line("core", "jointly", [99.0, 21.0, 21.2]),
            "jointly trained it is 1.10 BLEU ahead of the one trained alone, of as many epochs, which 2 seeds cannot "
            "tell from chance; diverged and left out: 1 alone",
        ),
    ],
)
def test_a_comparison_says_what_the_seeds_say(alone: Any, jointly: Any, expected: str) -> None:
    assert read(alone, jointly) == [f"r = 1/8, {alone['network']}: {expected}."]


@pytest.mark.parametrize(("seeds", "quantile"), [(2, 12.706), (3, 4.303), (4, 3.182), (5, 2.776), (9, 2.306)])
def test_the_doubt_is_students(seeds: int, quantile: float) -> None:
    """Differences with mean 1 whose standard error is 1/t: a little larger t is clear, a smaller one is not."""
    spread = [(-1.0) ** k for k in range(seeds)] if seeds % 2 == 0 else [0.0, *((-1.0) ** k for k in range(seeds - 1))]
    unit = math.sqrt(seeds) / stdev(spread)
    for t, is_clear in ((quantile * 1.15, True), (quantile * 0.99, False)):
        scores = [21.0 + unit / t * each for each in spread]
        (said,) = read(line("core", "alone", [20.0] * seeds), line("core", "jointly", scores))
        assert ("cannot tell from chance" not in said) == is_clear


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("table")])
def test_every_way_of_training_in_a_table_has_words(name: str, tmp_path: Path) -> None:
    lines = make_experiment(name, Request()).lines(open_folder(tmp_path))
    assert {line.trained for line in lines} <= findings._OURS.keys() | findings._OTHERS.keys()


@pytest.mark.parametrize("pairs", range(2, 11))
def test_the_interval_is_that_of_a_paired_t_test(pairs: int) -> None:
    values = np.random.default_rng(pairs).normal(0.3, 1.0, pairs)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    ours = difference(list(values))
    assert ours.half is not None
    assert (ours.mean - ours.half, ours.mean + ours.half) == pytest.approx((interval.low, interval.high), rel=1e-3)
    assert ours.is_clear == (stats.ttest_1samp(values, 0.0).pvalue < 0.05)


def test_one_pair_has_no_interval_and_many_pairs_have_one_that_is_not_too_short() -> None:
    assert str(difference([0.25])) == "+0.25 (one seed)" and not difference([9.0]).is_clear
    values = np.random.default_rng(0).normal(0.0, 1.0, 40)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert 2 * (difference(list(values)).half or 0.0) >= interval.high - interval.low
    assert str(difference([1.0, 1.0, 1.0])) == "+1 ± 0" and difference([1.0, 1.0, 1.0]).is_clear
