"""Filters of the templates: how the report writes numbers and lists."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "–"
_SPACE = "\N{NO-BREAK SPACE}"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None) -> str:
    """Write four significant digits, or all digits of a whole number."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "undefined")
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−") if 1e-4 <= abs(value) < 1e6 else scientific(value)


def score(value: float | None, largest: float) -> str:
    """Write a score with two decimals, or with four if the largest score of the column is at most 1."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{value:.{2 if largest > 1 else 4}f}".replace("-", "−")


def scientific(value: float | None) -> str:
    """Write 7.07 × 10⁹; numbers between 0.001 and 10,000 are written without a power of ten."""
    if value is None or value == 0 or not math.isfinite(value):
        return number(value)
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}" if abs(value) < 999 else f"{value:,.0f}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits.replace('-', '−')}{_SPACE}×{_SPACE}10{str(int(exponent)).translate(_SUPERSCRIPTS)}"


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.3g}{_SPACE}%"


def duration(seconds: float | None) -> str:
    """Write 2 ms, 4.9 s, 3 min, 3 min 20 s or 2 h 5 min."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{1e3 * seconds:.3g}{_SPACE}ms" if seconds < 0.1 else f"{seconds:.3g}{_SPACE}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{_SPACE}min" + (f" {rest}{_SPACE}s" if rest else "")
    return f"{minutes // 60}{_SPACE}h" + (f" {minutes % 60}{_SPACE}min" if minutes % 60 else "")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def join_names(names: Sequence[str]) -> str:
    """Write "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""
