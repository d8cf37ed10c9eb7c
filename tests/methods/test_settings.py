"""Settings are checked in one way."""

from __future__ import annotations

import math

import pytest

from partialsgd.methods._shared.settings import as_patterns, require_count, require_nonnegative, require_share


def test_shares_are_above_zero_and_at_most_one() -> None:
    require_share("keep", 1)
    require_share("keep", 1e-9)
    for bad in (0, -1, 1.0001, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"keep must be in \(0, 1\], got"):
            require_share("keep", bad)


def test_distances_are_not_negative() -> None:
    require_nonnegative("rho", 0)
    for bad in (-1e-9, math.nan):
        with pytest.raises(ValueError, match="rho must not be negative, got"):
            require_nonnegative("rho", bad)


def test_counts_are_whole_and_at_least_one() -> None:
    require_count("interval", 1)
    for bad in (0, -1, 1.5, math.nan):
        with pytest.raises(ValueError, match="interval must be a whole number of at least 1, got"):
            require_count("interval", bad)


def test_one_pattern_is_not_spelled_out() -> None:
    assert as_patterns("0.weight") == ("0.weight",)
    assert as_patterns(["a", "b"]) == ("a", "b")
