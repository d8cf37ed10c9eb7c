"""M, σ²: the smallest constants with which Assumption 2 holds at every pair that was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from partialsgd.meters.estimates import Estimate
from partialsgd.meters.spreads import Pair, Point


def envelope(pairs: Sequence[Pair], floor: float = 0.0) -> tuple[float, float]:
    """The smallest (M, σ²) with noise ≤ M · signal + σ² at every pair: the line that lies least above them in total.

    With s̄ the mean signal it minimises M s̄ + σ² over M ≥ 0, σ² ≥ floor: it is the edge over s̄ of the upper hull of the
    pairs and (0, floor). Where M and σ² are equally good, as they are where all signals are equal, σ² bears the noise.
    """
    seen = [Pair(max(0.0, pair.signal), pair.noise) for pair in pairs]
    least = min(pair.signal for pair in seen)
    middle = least + sum(pair.signal - least for pair in seen) / len(seen)  # exact where all are equal
    hull = _upper_hull([Pair(0.0, floor), *seen])
    slopes = [(b.noise - a.noise) / (b.signal - a.signal) for a, b in pairwise(hull) if a.signal <= middle < b.signal]
    M = max(0.0, *slopes) if slopes else 0.0
    return M, max(floor, *(pair.noise - M * pair.signal for pair in seen))


def bound(points: Sequence[Point]) -> tuple[Estimate, Estimate]:
    """M and σ² with which Assumption 2 holds at all that was measured; errors by leaving one batch out at a time.

    Nothing tells what the noise is where the gradient is smaller than at any point: it is taken to fall no further, so
    that σ² is at least the least noise that each mask had. At one x, where M and σ² cannot be told apart, this gives
    M = 0 and the largest noise of any mask. Over many pairs the largest of their random errors decides: the bound tends
    to be too high rather than too low. M is known only as well as ‖p ⊙ G‖² is.
    """
    if not points:
        raise ValueError("there is no point to bound the noise at; collect them with noise.measure(…)")
    M, variance = _fit([point.pairs() for point in points])
    M_error, variance_error = _jackknife(points)
    batches = " + ".join(str(len(point)) for point in points)
    note = f"one standard error over {batches} batches" if min(map(len, points)) > 2 else "two batches tell no error"
    if len(points) == 1:
        M_note = "set to 0: at one point it cannot be told from σ²"
        return Estimate(M, math.nan, M_note), Estimate(variance, variance_error, f"with M = 0; {note}")
    return Estimate(M, M_error, note), Estimate(variance, variance_error, note)


def _fit(points: Sequence[Mapping[str, Pair]]) -> tuple[float, float]:
    masks = {mask for pairs in points for mask in pairs}
    floor = max(min(pairs[mask].noise for pairs in points if mask in pairs) for mask in masks)
    return envelope([pair for pairs in points for pair in pairs.values()], floor)


def _jackknife(points: Sequence[Point]) -> tuple[float, float]:
    """Standard errors of M and σ²; batches are independent, within a point and between points."""
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
    """The corners of the smallest concave line above all pairs, from left to right."""
    hull: list[Pair] = []
    for c in sorted(pairs):
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], c):
            hull.pop()
        hull.append(c)
    return hull


def _is_below(a: Pair, b: Pair, c: Pair) -> bool:
    """Whether b is not above the line from a to c."""
    return (b.noise - a.noise) * (c.signal - a.signal) <= (c.noise - a.noise) * (b.signal - a.signal)
