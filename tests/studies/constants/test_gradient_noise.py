"""Signal and noise of masked gradients against sums written out, and the bounds M and σ² that lie above them."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.testing.problems import Problem
from studies.constants.gradient_noise import Pair, Point, Spread, bound, envelope, point
from studies.constants.objective import Objective
from tests.studies.constants.test_objective import EXACT, flatten, objective_of


def masks_of(objective: Objective) -> dict[str, Mask]:
    """All, none, a tensor, and elements."""
    parameters = objective.all_parameters
    first = next(iter(parameters))
    draw = torch.Generator().manual_seed(1)
    elements = {name: torch.rand(p.shape, generator=draw) < 0.4 for name, p in parameters.items()}
    return {
        "all": masks.everything(parameters),
        "nothing": masks.nothing(parameters),
        "first": masks.only(parameters, [first]),
        "elements": masks.from_tensors(parameters, elements),
    }


def flat(mask: Mask) -> Tensor:
    each = [torch.zeros(p.shape, dtype=torch.bool) | mask[name] for name, p in mask.parameters.items()]
    return torch.cat([entry.flatten() for entry in each]).double()


def spread(gradients: Tensor) -> Spread:
    """Return the spread of gradients that are the rows of a matrix."""
    mean = gradients.mean(0)
    apart = gradients - mean
    return Spread(float(mean @ mean), tuple(apart.square().sum(1).tolist()), tuple((apart @ mean).tolist()))


def assert_close(found: Pair, expected: Pair) -> None:
    assert found.signal == pytest.approx(expected.signal, rel=1e-4, abs=1e-9)
    assert found.noise == pytest.approx(expected.noise, rel=1e-4, abs=1e-9)


def written_out(g: Tensor) -> Pair:
    """The covariance's trace, and the mean product of the gradients of two different batches."""
    n, gram = len(g), g @ g.T
    return Pair(float((gram.sum() - gram.trace()) / (n * (n - 1))), float(g.var(0).sum()))


@pytest.mark.parametrize("problem", EXACT, ids=lambda p: p.name)
def test_a_point_is_the_covariance_and_the_products_of_different_batches(problem: Problem) -> None:
    objective = objective_of(problem, problem.model(), 6)
    named = masks_of(objective)
    found = point(objective, named)
    rows = torch.stack([flatten(objective.gradient(k)[1]).double() for k in range(6)])
    assert found.losses == tuple(objective.gradient(k)[0] for k in range(6))
    for name, mask in named.items():
        g = rows * flat(mask)
        assert_close(found.spreads[name].pair, written_out(g))
        for k in range(6):
            assert_close(found.spreads[name].without(k), written_out(torch.cat([g[:k], g[k + 1 :]])))
    assert found.spreads["nothing"].pair == Pair(0, 0)
    assert found.pairs(2) == {name: spread.without(2) for name, spread in found.spreads.items()}


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
    assert slope.value == 0 and math.isnan(slope.error) and "cannot be separated" in slope.note
    assert variance.value == found.spreads["all"].pair.noise > found.spreads["part"].pair.noise
    assert variance.note == "with M = 0; one standard error over 10 batches"


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


def test_two_batches_give_numbers_without_an_error_and_no_points_none() -> None:
    draw = torch.Generator().manual_seed(4)
    slope, variance = bound([simulated(draw, 1.0, 2), simulated(draw, 2.0, 9)])
    assert math.isnan(slope.error) and math.isnan(variance.error) and variance.note == "two batches give no error"
    with pytest.raises(ValueError, match=r"constants\.measure"):
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
    for k, each in enumerate(points):
        (other,) = points[1 - k].pairs().values()
        left_out = torch.tensor([fitted(*each.pairs(i).values(), other) for i in range(len(each))])
        squares += (len(each) - 1) * float(left_out.double().var(correction=0))
    assert slope.error == pytest.approx(math.sqrt(squares), rel=1e-4)
    assert slope.note == "one standard error over 5 + 6 batches"
