"""How the page writes a number."""

from __future__ import annotations

import math
from collections.abc import Sequence

NOTHING = "–"
_S = "\N{NO-BREAK SPACE}"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain(value: float | None) -> str:
    """Four digits, or all of a whole number."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "undefined")
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value):,}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−") if 1e-4 <= abs(value) < 1e6 else power(value)


def score(value: float | None, largest: float) -> str:
    """Of a column whose largest is given: all with the same decimals, so that they can be compared."""
    if value is None or not math.isfinite(value):
        return plain(value)
    return f"{value:.{2 if largest > 1 else 4}f}".replace("-", "−")


def whole(value: float | None) -> str:
    return NOTHING if value is None else f"{round(value):,}"


def power(value: float | None) -> str:
    """7.07 × 10⁹; small ones as they are."""
    if value is None:
        return NOTHING
    if value == 0 or not math.isfinite(value) or 1e-3 <= abs(value) < 1e4:
        return "0" if value == 0 else f"{value:.3g}" if abs(value) < 999 else f"{value:,.0f}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits.replace('-', '−')}{_S}×{_S}10{str(int(exponent)).translate(_RAISED)}"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.3g}{_S}%"


def duration(seconds: float | None) -> str:
    """Of a training: 4.9 s, 3 min, 3 min 20 s, 2 h 5 min."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{seconds:.3g}{_S}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{_S}min" + (f" {rest}{_S}s" if rest else "")
    return f"{minutes // 60}{_S}h" + (f" {minutes % 60}{_S}min" if minutes % 60 else "")


def latency(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{1e3 * seconds:.3g}{_S}ms"


def signed(value: float) -> str:
    """A difference."""
    return f"{value:+.3g}".replace("-", "−")


def times(value: float) -> str:
    """A factor."""
    return "∞" if math.isinf(value) else f"{value:.3g}" if value < 999 else power(value)


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def named(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""
