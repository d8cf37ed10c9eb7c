"""Paired differences: the mean and its interval, against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from partialsgd.lab.reproduce.paired import difference


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
