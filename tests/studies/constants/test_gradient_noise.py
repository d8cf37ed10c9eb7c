"""Signal and noise of masked gradients against sums written out, and the bounds M and σ² that lie above them."""

from __future__ import annotations

import math
import random

import pytest
import torch
from studies.constants.gradient_noise import Estimate, Pair, Point, Spread, bound, envelope, point, standard_error
from studies.constants.objective import Objective
from torch import Tensor

from partialsgd import masks
from partialsgd.masks import Mask
from partialsgd.testing.problems import PROBLEMS, Problem
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


def test_both_numbers_are_unbiased() -> None:
    """Without n/(n − 1) the noise of four batches would be a quarter too small, ‖ḡ‖² as much of it too large."""
    d, n, seeds, scale = 5, 4, 4000, 3.0
    truth, draw = torch.linspace(-1, 1, d, dtype=torch.float64), torch.Generator().manual_seed(0)
    noise = scale * torch.randn(seeds, n, d, dtype=torch.float64, generator=draw)
    found = torch.tensor([spread(truth + xi).pair for xi in noise], dtype=torch.float64)
    mean, error = found.mean(0), found.std(0) / seeds**0.5
    for k, true in enumerate((float(truth @ truth), d * scale**2)):
        assert abs(float(mean[k]) - true) < 4 * float(error[k])
    assert float(error[1]) < 0.02 * d * scale**2 and float(error[0]) < 0.1 * d * scale**2 / n
    assert float(found[:, 0].min()) < 0, "unbiased, so sometimes negative"


@pytest.mark.parametrize("problem", [p for p in PROBLEMS if p.name != "unused"], ids=lambda p: p.name)
def test_the_whole_data_as_every_batch_has_no_noise_at_all(problem: Problem) -> None:
    model = problem.model().eval()  # in training, dropout is noise of its own
    objective = Objective(model, lambda t: problem.evaluate(model, t), [0] * 3)
    found = point(objective, masks_of(objective))
    gradient = flatten(objective.gradient(0)[1]).double()
    assert all(pair.noise == 0 for pair in found.pairs().values()) and all(
        pair.noise == 0 for pair in found.pairs(1).values()
    )
    assert found.spreads["all"].pair.signal == pytest.approx(float(gradient @ gradient))


def test_dropout_is_noise_too() -> None:
    problem = next(p for p in PROBLEMS if p.name == "batchnorm")
    model = problem.model().train()
    objective = Objective(model, lambda t: problem.evaluate(model, t), [0] * 3)
    assert point(objective, {"all": masks.everything(model)}).pairs()["all"].noise > 0


def test_one_batch_is_refused() -> None:
    problem = PROBLEMS[0]
    objective = objective_of(problem, problem.model(), 1)
    with pytest.raises(ValueError, match="one batch gives no information about the noise"):
        point(objective, masks_of(objective))


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
    assert slope.value == 0 and math.isnan(slope.error) and "cannot be separated" in slope.note
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
        for pair in (pair for each in points for pair in each.pairs().values()):
            assert slope.value * max(0.0, pair.signal) + variance.value >= pair.noise - 1e-9
        middle = sum(size**2 for size in sizes) / len(sizes)
        high += slope.value * middle + variance.value > M * middle + VARIANCE
    assert high > 45


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


def test_an_estimate_is_a_number_and_says_how_far_off_it_may_be() -> None:
    assert float(Estimate(2.5, 0.1, "x")) == 2.5
    assert str(Estimate(2.5, math.nan, "given")) == "2.5 (given)"
    assert math.isnan(standard_error([1.0])) and standard_error([1.0, 3.0]) == 1
