"""Numbers as a reader expects them."""

from __future__ import annotations

import math

import pytest

from partialsgd.lab.page import numbers


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (numbers.plain(30.125), "30.12"),
        (numbers.plain(-0.5), "−0.5"),
        (numbers.plain(1234567), "1,234,567"),
        (numbers.plain(math.inf), "∞"),
        (numbers.plain(-math.inf), "−∞"),
        (numbers.plain(math.nan), "undefined"),
        (numbers.plain(None), "–"),
        (numbers.plain(1e-9), "1.00 × 10⁻⁹"),
        (numbers.score(21.5, 30.1), "21.50"),
        (numbers.score(0.5, 0.9), "0.5000"),
        (numbers.score(1.0, 1.0), "1.0000"),
        (numbers.score(5.35, 7.8), "5.35"),
        (numbers.score(None, 1.0), "–"),
        (numbers.score(math.nan, 1.0), "undefined"),
        (numbers.power(7.0718e9), "7.07 × 10⁹"),
        (numbers.power(0.0), "0"),
        (numbers.power(6896.2), "6,896"),
        (numbers.power(999.4), "999"),
        (numbers.share(0.25), "25 %"),
        (numbers.duration(4.94), "4.94 s"),
        (numbers.duration(59.99), "60 s"),
        (numbers.duration(200), "3 min 20 s"),
        (numbers.duration(180), "3 min"),
        (numbers.duration(7500), "2 h 5 min"),
        (numbers.duration(7200), "2 h"),
        (numbers.latency(0.00123), "1.23 ms"),
        (numbers.signed(-0.9553), "−0.955"),
        (numbers.signed(1.5), "+1.5"),
        (numbers.times(6896.2), "6,896"),
        (numbers.times(math.inf), "∞"),
        (numbers.counted(1, "step"), "1 step"),
        (numbers.counted(2000, "step"), "2,000 steps"),
        (numbers.named(["a", "b", "c"]), "a, b and c"),
        (numbers.named(["a"]), "a"),
        (numbers.named([]), ""),
    ],
)
def test_a_number_is_written_as_people_do(said: str, expected: str) -> None:
    assert said.replace("\N{NO-BREAK SPACE}", " ") == expected
