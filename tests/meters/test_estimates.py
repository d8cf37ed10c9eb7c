"""Numbers with their uncertainty."""

from __future__ import annotations

import math

from partialsgd.meters.estimates import Estimate, standard_error


def test_an_estimate_is_a_number_and_says_how_far_off_it_may_be() -> None:
    assert float(Estimate(2.5, 0.1, "x")) == 2.5
    assert str(Estimate(2.5, math.nan, "given")) == "2.5 (given)"
    assert math.isnan(standard_error([1.0])) and standard_error([1.0, 3.0]) == 1
