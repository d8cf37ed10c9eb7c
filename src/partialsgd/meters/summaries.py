"""Mean, maximum, share below zero: the criteria of one mask over a run.

The maximum over all steps is what the theorem asks for, and it says nothing once the core is nearly stationary: then
‖p ⊙ G‖ goes to zero and c_norm with it to infinity (erratum E22). The mean over the steps of a mask is what to look at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, final

from partialsgd.meters.criteria import Criteria

QUANTITIES = ("c_norm", "c_sim", "c_align", "cosine", "alpha", "q", "bounded_perturbation", "secant")


@final
@dataclass(frozen=True)
class Summary:
    """Of the steps of one mask at which it was measured."""

    count: int
    mean: Mapping[str, float]
    """Over the steps where the quantity is a number that has a meaning: finite, and for c_align not negative."""
    max: Mapping[str, float]
    """Infinite for c_align and q as soon as one alignment was negative: no bound holds then."""
    min: Mapping[str, float]
    """The worst case of α and the cosine."""
    negative: float
    """The share of steps at which the two gradients pointed apart."""

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {self.mean[name]:.3g} (max {self.max[name]:.3g})" for name in ("c_norm", "c_sim"))
        align = f"c_align {self.mean['c_align']:.3g} (max {self.max['c_align']:.3g}, {self.negative:.0%} negative)"
        return f"{self.count} measured: {shown}, {align}, q {self.mean['q']:.3g} (max {self.max['q']:.3g})"


def note(memory: MutableMapping[str, Any], place: str, found: Criteria) -> None:
    """Add one measurement to what is remembered of its mask."""
    counted = {"count": 1, "negative": int(found.inner < 0)}
    for name in QUANTITIES:
        value = getattr(found, name)
        memory[f"{place}/{name}.last"] = value
        bound = math.inf if name == "c_align" and value < 0 else value
        if math.isfinite(bound):
            counted |= {f"{name}.sum": value, f"{name}.count": 1}
        key = f"{place}/{name}.max"
        if not math.isnan(bound):
            memory[key] = max(float(memory.get(key, -math.inf)), bound)
            key = f"{place}/{name}.min"
            memory[key] = min(float(memory.get(key, math.inf)), value)
    for name, more in counted.items():
        memory[f"{place}/{name}"] = memory.get(f"{place}/{name}", 0) + more


def latest(memory: Mapping[str, Any], place: str, name: str) -> float | None:
    """The last value of a quantity, for rules that decide by it; None before the first."""
    value = memory.get(f"{place}/{name}.last")
    return None if value is None else float(value)


def times(memory: Mapping[str, Any], place: str) -> int:
    """How often the mask was measured."""
    return int(memory.get(f"{place}/count", 0))


def highest(memory: Mapping[str, Any], place: str, name: str) -> float:
    """The largest value of a quantity so far; not a number before the first."""
    return float(memory.get(f"{place}/{name}.max", math.nan))


def summaries(memory: Mapping[str, Any]) -> dict[str, Summary]:
    """One for each mask that was measured, by its level."""
    places = [key.removesuffix("/count") for key in memory if key.endswith("/count")]
    return {place: _summary(memory, place) for place in places}


def _summary(memory: Mapping[str, Any], place: str) -> Summary:
    def of(name: str) -> float:
        return float(memory.get(f"{place}/{name}", 0.0))

    counts = {name: of(f"{name}.count") for name in QUANTITIES}
    return Summary(
        count=times(memory, place),
        mean={name: of(f"{name}.sum") / n if n else math.nan for name, n in counts.items()},
        max={name: highest(memory, place, name) for name in QUANTITIES},
        min={name: float(memory.get(f"{place}/{name}.min", math.nan)) for name in QUANTITIES},
        negative=of("negative") / max(1, times(memory, place)),
    )
