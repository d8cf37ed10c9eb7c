"""Numbers and lists as the report writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from partialsgd.lab.page import formatting

CASES: dict[Callable[..., str], dict[Any, str]] = {
    formatting.number: {30.125: "30.12", -0.5: "−0.5", 1234567: "1,234,567", 1e-9: "1.00 × 10⁻⁹", None: "–"},
    partial(formatting.number): {math.inf: "∞", -math.inf: "−∞", math.nan: "undefined"},
    partial(formatting.score, largest=30.1): {21.5: "21.50", 5.35: "5.35", None: "–", math.nan: "undefined"},
    partial(formatting.score, largest=1.0): {0.5: "0.5000", 1.0: "1.0000"},
    formatting.scientific: {7.0718e9: "7.07 × 10⁹", 0.0: "0", 6896.2: "6,896", 999.4: "999", math.inf: "∞", None: "–"},
    formatting.percent: {0.25: "25 %"},
    formatting.duration: {
        0.002: "2 ms",
        4.94: "4.94 s",
        200: "3 min 20 s",
        180: "3 min",
        7500: "2 h 5 min",
        7200: "2 h",
    },
    partial(formatting.plural, noun="step"): {1: "1 step", 2000: "2,000 steps"},
    formatting.join_names: {("a", "b", "c"): "a, b and c", ("a",): "a", (): ""},
}


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [(write, value, expected) for write, cases in CASES.items() for value, expected in cases.items()],
)
def test_value_is_written_as_expected(write: Callable[[Any], str], value: Any, expected: str) -> None:
    assert write(value).replace("\N{NO-BREAK SPACE}", " ") == expected
