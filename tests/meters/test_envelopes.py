"""M and σ²: above all pairs and the least such, true within their errors, too high rather than too low."""

from __future__ import annotations

import math
import random

import pytest
import torch

from partialsgd.meters.envelopes import bound, envelope
from partialsgd.meters.spreads import Pair, Point, Spread
from tests.meters.test_spreads import spread

M, VARIANCE, D = 2.0, 5.0, 40
SIZES = (0.1, 2.0)


def simulated(draw: torch.Generator, size: float, n: int, share: float = 1.0) -> Point:
    """n gradients (1 + √M z) ⊙ G + w with ‖G‖ = size and E‖w‖² = σ², seen whole and through a part of d."""
    G = torch.full((D,), size / math.sqrt(D), dtype=torch.float64)
    z, w = torch.randn(2, n, D, dtype=torch.float64, generator=draw)
    g = G * (1 + math.sqrt(M) * z) + math.sqrt(VARIANCE / D) * w
    spreads = {"all": spread(g)}
    if share < 1:
        spreads["part"] = spread(g[:, : int(share * D)])
    return Point((1.0,) * n, spreads)


def test_a_line_through_the_pairs_is_found() -> None:
    found = envelope([Pair(s, M * s + VARIANCE) for s in (0.1, 1.0, 4.0)])
    assert found == pytest.approx((M, VARIANCE))


def test_it_is_above_every_pair_and_no_other_such_line_is_lower_on_average() -> None:
    draw = random.Random(0)
    for _ in range(300):
        pairs = [Pair(draw.uniform(-0.2, 3), draw.expovariate(1)) for _ in range(draw.randint(1, 9))]
        floor = draw.choice([0.0, 0.7])
        slope, offset = envelope(pairs, floor)
        signals = [max(0.0, pair.signal) for pair in pairs]
        mean = sum(signals) / len(signals)
        assert slope >= 0 and offset >= floor
        assert all(slope * s + offset >= pair.noise - 1e-12 for s, pair in zip(signals, pairs, strict=True))
        others = [0.0, *((pair.noise - floor) / s for s, pair in zip(signals, pairs, strict=True) if s > 0)]
        both = list(zip(signals, (pair.noise for pair in pairs), strict=True))
        others += [(b - v) / (a - s) for s, v in both for a, b in both if a != s]
        lines = [(m, max([floor, *(v - m * s for s, v in both)])) for m in others if m >= 0]
        assert slope * mean + offset == pytest.approx(min(m * mean + v for m, v in lines))


def test_where_signals_are_equal_or_noise_falls_the_variance_bears_it() -> None:
    assert envelope([Pair(0.1, 5.0)] * 10) == (0, 5), "though the mean of ten tenths, added up, is below a tenth"
    assert envelope([Pair(1.0, 4.0), Pair(2.0, 3.0)]) == (0, 4)
    assert envelope([Pair(-0.5, 4.0), Pair(0.0, 1.0)]) == (0, 4)
    assert envelope([Pair(1.0, 0.0), Pair(2.0, 0.0)]) == (0, 0)
    assert envelope([Pair(1.0, 2.0), Pair(4.0, 9.0)]) == pytest.approx((9 / 4, 0)), "σ² is not negative"
    assert envelope([Pair(1.0, 2.0), Pair(4.0, 9.0)], floor=1.0) == pytest.approx((2, 1))


def test_at_one_point_m_is_zero_and_the_variance_is_the_largest_of_any_mask() -> None:
    found = simulated(torch.Generator().manual_seed(0), 2.0, 10, share=0.5)
    slope, variance = bound([found])
    assert slope.value == 0 and math.isnan(slope.error) and "cannot be told" in slope.note
    assert variance.value == found.spreads["all"].pair.noise > found.spreads["part"].pair.noise
    assert variance.note == "with M = 0; one standard error over 10 batches"


def test_the_variance_of_one_point_is_true_within_its_error() -> None:
    draw, true = torch.Generator().manual_seed(1), M * 4 + VARIANCE
    found = [bound([simulated(draw, 2.0, 16)])[1] for _ in range(400)]
    within = sum(abs(e.value - true) <= 2 * e.error for e in found) / 400
    mean = sum(e.value for e in found) / 400
    spread_of = math.sqrt(sum((e.value - mean) ** 2 for e in found) / 399)
    assert abs(mean - true) < 4 * spread_of / 20
    assert 0.88 < within < 0.98
    assert sum(e.error for e in found) / 400 == pytest.approx(spread_of, rel=0.15)


def test_m_and_variance_of_two_points_are_true_within_their_errors() -> None:
    draw = torch.Generator().manual_seed(2)
    found = [bound([simulated(draw, size, 24) for size in SIZES]) for _ in range(400)]
    for which, true in enumerate((M, VARIANCE)):
        estimates = [both[which] for both in found]
        assert 0.88 < sum(abs(e.value - true) <= 2 * e.error for e in estimates) / 400 < 0.99
        mean = sum(e.value for e in estimates) / 400
        assert mean == pytest.approx(true, rel=0.1)
        spread_of = math.sqrt(sum((e.value - mean) ** 2 for e in estimates) / 399)
        assert sum(e.error for e in estimates) / 400 == pytest.approx(spread_of, rel=0.25)


def test_over_many_points_and_masks_the_bound_holds_and_is_rather_too_high() -> None:
    draw, sizes = torch.Generator().manual_seed(3), (0.5, 1.0, 1.5, 2.0, 2.5)
    high = 0
    for _ in range(60):
        points = [simulated(draw, size, 24, share=0.5) for size in sizes]
        slope, variance = bound(points)
        for pair in (pair for point in points for pair in point.pairs().values()):
            assert slope.value * max(0.0, pair.signal) + variance.value >= pair.noise - 1e-9
        middle = sum(size**2 for size in sizes) / len(sizes)
        high += slope.value * middle + variance.value > M * middle + VARIANCE
    assert high > 45


def test_two_batches_give_numbers_without_an_error_and_no_points_none() -> None:
    draw = torch.Generator().manual_seed(4)
    slope, variance = bound([simulated(draw, 1.0, 2), simulated(draw, 2.0, 9)])
    assert math.isnan(slope.error) and math.isnan(variance.error) and variance.note == "two batches tell no error"
    with pytest.raises(ValueError, match=r"noise\.measure"):
        bound([])


def fitted(a: Pair, b: Pair) -> float:
    """M of two points seen through one mask."""
    return envelope([a, b], min(a.noise, b.noise))[0]


def test_the_noise_is_not_taken_to_fall_further_than_it_was_seen_to() -> None:
    """Through (1, 2) and (4, 9) a line meets zero before the gradient does: σ² would be 0, and a bound for small
    gradients as if there were no noise."""
    one = [Point((1.0,), {"p": steady(s, v), "part": steady(s / 2, v / 2)}) for s, v in ((1.0, 2.0), (4.0, 9.0))]
    (slope, variance), least = bound(one), min(point.pairs()["p"].noise for point in one)
    assert variance.value == least == pytest.approx(2) and slope.value == pytest.approx(7 / 4)


def steady(signal: float, noise: float) -> Spread:
    """Two batches with this pair."""
    return Spread(signal + noise / 2, (noise / 2, noise / 2), (0.0, 0.0))


def test_the_error_is_the_jackknife_written_out() -> None:
    points = [simulated(torch.Generator().manual_seed(k), size, 5 + k) for k, size in enumerate(SIZES)]
    slope, _ = bound(points)
    squares = 0.0
    for k, point in enumerate(points):
        (other,) = points[1 - k].pairs().values()
        left_out = torch.tensor([fitted(*point.pairs(i).values(), other) for i in range(len(point))])
        squares += (len(point) - 1) * float(left_out.double().var(correction=0))
    assert slope.error == pytest.approx(math.sqrt(squares), rel=1e-4)
    assert slope.note == "one standard error over 5 + 6 batches"
