"""M and σ² of Assumption 2, from the gradients of independent batches seen through masks.

Assumption 2 requires E‖p ⊙ ξ‖² ≤ M ‖p ⊙ G‖² + σ² for every mask p in use. A `Pair` holds E‖p ⊙ ξ‖² and ‖p ⊙ G‖².
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, final

import torch
from torch import Tensor

from partialsgd.masks import Mask
from studies.constants.objective import Objective


@final
@dataclass(frozen=True)
class Estimate:
    """A number with its error; `note` says what kind of error it is, and it is nan if the error is unknown."""

    value: float
    error: float
    note: str

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        error = "" if math.isnan(self.error) else f" ± {self.error:.2g}"
        return f"{self.value:.3g}{error} ({self.note})"


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of independent values; nan for a single value."""
    n = len(values)
    if n < 2:
        return math.nan
    mean = sum(values) / n
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (n * (n - 1)))


class Pair(NamedTuple):
    """The two sides of Assumption 2 at one x and one mask, which requires noise ≤ M · signal + σ²."""

    signal: float
    """‖p ⊙ G‖². The estimate is unbiased, so it may be negative if the noise is much larger."""
    noise: float
    """E‖p ⊙ ξ‖² of the gradient of one batch; unbiased."""


@final
@dataclass(frozen=True)
class Spread:
    """How the gradients g_1 … g_n of independent batches at one x differ under one mask p; ḡ is their mean."""

    mean: float
    """‖p ⊙ ḡ‖²"""
    deviations: tuple[float, ...]
    """‖p ⊙ (g_k − ḡ)‖²"""
    along: tuple[float, ...]
    """⟨p ⊙ (g_k − ḡ), p ⊙ ḡ⟩"""

    @property
    def pair(self) -> Pair:
        """The unbiased pair: ḡ contains 1/n of the noise, which is subtracted from its squared norm."""
        n, squares = len(self.deviations), sum(self.deviations)
        return Pair(self.mean - squares / (n * (n - 1)), squares / (n - 1))

    def without(self, k: int) -> Pair:
        """Return the pair without batch k, whose mean is ḡ − (g_k − ḡ) / (n − 1)."""
        m, removed = len(self.deviations) - 1, self.deviations[k]
        squares = max(0.0, sum(self.deviations) - removed * (m + 1) / m)  # rounding alone makes it negative
        mean = self.mean - 2 * self.along[k] / m + removed / m**2
        return Pair(mean - squares / (m * (m - 1)), squares / (m - 1))


@final
@dataclass(frozen=True)
class Point:
    """A measurement at one x: the losses of n batches, and for each mask how their gradients differ."""

    losses: tuple[float, ...]
    spreads: Mapping[str, Spread]

    def __len__(self) -> int:
        return len(self.losses)

    def pairs(self, without: int | None = None) -> dict[str, Pair]:
        """Return the pair of each mask, over all batches or all but one."""
        return {mask: s.pair if without is None else s.without(without) for mask, s in self.spreads.items()}


def point(objective: Objective, masks: Mapping[str, Mask]) -> Point:
    """Measure at the current x. Each gradient is computed twice, so that only two are in memory at a time."""
    n = len(objective)
    if n < 2:
        raise ValueError("one batch gives no information about the noise; pass at least 2 batches, better 8 or more")
    losses, mean = _means(objective)
    deviations: list[list[float]] = []
    along: list[list[float]] = []
    for k in range(n):
        gradient = objective.gradient(k)[1]
        difference = {name: gradient[name] - mean[name] for name in mean}
        deviations.append(_inner(masks.values(), difference, difference))
        along.append(_inner(masks.values(), difference, mean))
    squares = _inner(masks.values(), mean, mean)
    spreads = map(Spread, squares, zip(*deviations, strict=True), zip(*along, strict=True))
    return Point(losses, dict(zip(masks, spreads, strict=True)))


def _means(objective: Objective) -> tuple[tuple[float, ...], dict[str, Tensor]]:
    """Return the losses, and ḡ."""
    losses, mean = [], {name: torch.zeros_like(p, requires_grad=False) for name, p in objective.parameters.items()}
    for k in range(len(objective)):
        loss, gradient = objective.gradient(k)
        losses.append(loss)
        for name, total in mean.items():  # incrementally, so that the mean of equal gradients is exact
            total.add_(gradient[name] - total, alpha=1 / (k + 1))
    return tuple(losses), mean


def _inner(masks: Collection[Mask], a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[float]:
    """Return ⟨p ⊙ a, p ⊙ b⟩ for each mask; a whole tensor is summed once for all masks."""
    totals = [0.0] * len(masks)
    for name in a:
        product = a[name].double() * b[name].double()
        whole = float(product.sum())
        for k, mask in enumerate(masks):
            entry = mask[name]
            totals[k] += float(product.masked_fill(~entry, 0).sum()) if isinstance(entry, Tensor) else whole * entry
    return totals


def envelope(pairs: Sequence[Pair], floor: float = 0.0) -> tuple[float, float]:
    """Return the (M, σ²) with noise ≤ M · signal + σ² at every pair that minimises M s̄ + σ², s̄ being the mean signal.

    Under M ≥ 0 and σ² ≥ floor this is the edge over s̄ of the upper hull of the pairs and (0, floor). If several lines
    are equally good, as with equal signals, the one with the smallest M is returned.
    """
    clipped = [Pair(max(0.0, pair.signal), pair.noise) for pair in pairs]
    least = min(pair.signal for pair in clipped)
    middle = least + sum(pair.signal - least for pair in clipped) / len(clipped)  # exact where all are equal
    hull = _upper_hull([Pair(0.0, floor), *clipped])
    slopes = [(b.noise - a.noise) / (b.signal - a.signal) for a, b in pairwise(hull) if a.signal <= middle < b.signal]
    M = max(0.0, *slopes) if slopes else 0.0
    return M, max(floor, *(pair.noise - M * pair.signal for pair in clipped))


def bound(points: Sequence[Point]) -> tuple[Estimate, Estimate]:
    """Return the M and σ² with which Assumption 2 holds at all points, with jackknife errors over the batches.

    The noise at gradients smaller than any measured one is unknown and is assumed not to fall further, so that σ² is at
    least the smallest noise of each mask. At a single x, M and σ² cannot be separated: M is 0 and σ² the largest noise
    of any mask. Over many pairs the largest random error decides, so that the bound tends to be too high.
    """
    if not points:
        raise ValueError("points is empty; collect points with constants.measure(…)")
    M, variance = _fit([point.pairs() for point in points])
    M_error, variance_error = _jackknife(points)
    batches = " + ".join(str(len(point)) for point in points)
    note = f"one standard error over {batches} batches" if min(map(len, points)) > 2 else "two batches give no error"
    if len(points) == 1:
        M_note = "set to 0: at one point it cannot be separated from σ²"
        return Estimate(M, math.nan, M_note), Estimate(variance, variance_error, f"with M = 0; {note}")
    return Estimate(M, M_error, note), Estimate(variance, variance_error, note)


def _fit(points: Sequence[Mapping[str, Pair]]) -> tuple[float, float]:
    masks = {mask for pairs in points for mask in pairs}
    floor = max(min(pairs[mask].noise for pairs in points if mask in pairs) for mask in masks)
    return envelope([pair for pairs in points for pair in pairs.values()], floor)


def _jackknife(points: Sequence[Point]) -> tuple[float, float]:
    """Return the standard errors of M and σ²; batches are independent, within a point and between points."""
    if min(map(len, points)) < 3:
        return math.nan, math.nan
    squares = [0.0, 0.0]
    for k, point in enumerate(points):
        others, n = [other.pairs() for other in (*points[:k], *points[k + 1 :])], len(point)
        for which, values in enumerate(zip(*(_fit([*others, point.pairs(i)]) for i in range(n)), strict=True)):
            mean = sum(values) / n
            squares[which] += (n - 1) / n * sum((value - mean) ** 2 for value in values)
    return math.sqrt(squares[0]), math.sqrt(squares[1])


def _upper_hull(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the corners of the smallest concave line above all pairs, from left to right."""
    hull: list[Pair] = []
    for c in sorted(pairs):
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], c):
            hull.pop()
        hull.append(c)
    return hull


def _is_below(a: Pair, b: Pair, c: Pair) -> bool:
    """Return True if b is not above the line from a to c."""
    return (b.noise - a.noise) * (c.signal - a.signal) <= (c.noise - a.noise) * (b.signal - a.signal)
