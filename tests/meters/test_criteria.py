"""The criteria of one step against vectors written out and at their edges, and their summary over a run."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from partialsgd import masks
from partialsgd._util.bitwise_select import over_rows
from partialsgd.meters.criteria import (
    Criteria,
    SquaredNorms,
    add_to_summary,
    criteria,
    latest,
    squared_norms,
    summaries,
    times_measured,
)
from partialsgd.vectors import Vector

FOUR = nn.ParameterDict({name: nn.Parameter(torch.zeros(4)) for name in "abcd"})


def two() -> nn.Module:
    return nn.ParameterDict({"a": nn.Parameter(torch.zeros(3)), "b": nn.Parameter(torch.zeros(2, 2))})


def test_they_are_the_ratios_of_the_masked_vectors() -> None:
    mask = masks.from_tensors(two(), {"a": torch.tensor([True, False, True]), "b": True})
    g = {"a": torch.tensor([1.0, 2.0, 3.0]), "b": torch.tensor([[1.0, -1.0], [0.5, 2.0]])}
    h = {"a": torch.tensor([2.0, 9.0, 1.0]), "b": torch.tensor([[0.0, -1.0], [1.0, 2.0]])}
    measured = criteria(mask, Vector(g), Vector(h))
    p = torch.tensor([1.0, 0, 1, 1, 1, 1, 1])
    x, y = (torch.cat([v["a"], v["b"].flatten()]) for v in (g, h))
    px, py = p * x, p * y
    assert measured.c_norm == pytest.approx(float(x.norm() / px.norm()))
    assert measured.c_sim == pytest.approx(float(px.norm() / py.norm()))
    assert measured.c_align == pytest.approx(float(px.norm() * py.norm() / (px @ py)))
    assert measured.alpha == pytest.approx(float((px @ py) / (py @ py)))
    assert measured.q == pytest.approx(float(x.norm() / (measured.alpha * py.norm())))
    assert measured.q == pytest.approx(measured.c_norm * max(measured.c_sim, measured.c_align))


def test_plain_training_gives_one_exactly() -> None:
    g = Vector({"a": torch.tensor([0.1, 0.7, -0.3]), "b": torch.full((2, 2), 1 / 3)})
    measured = criteria(masks.everything(two()), g, g)
    assert measured.alpha == 1
    assert (measured.c_norm, measured.c_sim, measured.c_align, measured.cosine, measured.q) == (1, 1, 1, 1, 1)


def test_negative_inner_products_and_zero_norms_give_infinities_and_not_errors() -> None:
    """Erratum E10: G = 1, G̃ = −1/2 would give α = −2."""
    opposed = Criteria(whole=1.0, masked=1.0, shared=1.0, perturbed=0.5, inner=-0.5)
    assert opposed.c_align == -1.0 and opposed.alpha == 0.0 and opposed.q == math.inf
    nothing = Criteria(1.0, 0.0, 0.0, 0.0, 0.0)
    assert nothing.c_norm == math.inf and math.isnan(nothing.c_sim) and math.isnan(nothing.c_align)
    assert math.isnan(nothing.alpha) and nothing.q == math.inf, "the step sees nothing of a gradient that is not zero"
    assert math.isnan(Criteria(0.0, 0.0, 0.0, 0.0, 0.0).q)
    assert Criteria(1.0, 1.0, 1.0, 1.0, 0.0).c_align == math.inf
    assert Criteria(1.0, 0.5, 0.0, 0.0, 0.0).q == math.inf, "no coordinate was used by both passes"


def test_no_numbers_raise() -> None:
    """A pass at x that overflows must not stop a run that would go on without it."""
    edges = (0.0, 1e-300, 1.0, 1e300, math.inf, math.nan)
    for whole, masked, perturbed in itertools.product(edges, edges, edges):
        for inner in (*edges, -1.0, -math.inf):
            measured = Criteria(whole, masked, masked, perturbed, inner, 1.0, 1.0)
            assert all(isinstance(value, float | int) for value in measured.numbers().values())
            assert len(measured.squared) == 3 and (math.isnan(measured.alpha) or 0 <= measured.alpha <= 1)
    assert math.isnan(Criteria(math.inf, math.inf, math.inf, 1.0, -math.inf).alpha), "α is unknown after an overflow"


def test_norms_of_each_parameter_and_what_one_pass_left_out() -> None:
    g, h = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 1.0, -1.0, 2.0])
    inside = torch.tensor([True, False, True, True])
    mask = masks.from_tensors(FOUR, {"a": inside, "b": True, "c": inside})
    norms = squared_norms(mask, Vector({"a": g, "b": g, "d": g}), Vector({"a": h, "c": h}))
    assert norms["a"] == SquaredNorms(whole=30, masked=26, shared=26, perturbed=5, inner=5, difference=21)
    assert norms["b"] == SquaredNorms(whole=30, masked=30, left_out=4)
    assert norms["c"] == SquaredNorms(left_out=3)
    assert norms["d"] == SquaredNorms(whole=30), "outside the mask it belongs to the whole gradient only"
    measured = criteria(mask, Vector({"a": g, "b": g, "d": g}), Vector({"a": h, "c": h}))
    squares = {"whole": 90, "masked": 56, "shared": 26, "perturbed": 5, "difference": 21}
    assert {name: getattr(measured, name) ** 2 for name in squares} == pytest.approx(squares)
    assert (measured.inner, measured.left_out) == (5, 7) and measured.c_sim == math.sqrt(26) / math.sqrt(5)
    assert squared_norms(mask, Vector({}), Vector({})) == {} and criteria(mask, Vector({}), Vector({})).whole == 0


def test_a_masked_part_is_what_the_mask_leaves_also_of_odd_layouts() -> None:
    big = nn.ParameterDict({"a": nn.Parameter(torch.zeros(600, 700))})
    g, h = torch.randn(2, 600, 700, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(600) % 3 == 0
    for inside in (torch.rand(600, 700, generator=torch.Generator().manual_seed(1)) < 0.3, over_rows(rows, (600, 700))):
        mask = masks.from_tensors(big, {"a": inside})
        for x in (g, g.t().contiguous().t()):
            norms = squared_norms(mask, Vector({"a": x}), Vector({"a": h}))["a"]
            pg, ph = (g * inside).double(), (h * inside).double()
            squares = [float(v.square().sum()) for v in (g.double(), pg, pg, ph)]
            assert list(norms[:4]) == pytest.approx(squares, rel=1e-6)
            assert norms.inner == pytest.approx(float((pg * ph).sum()), abs=1e-6 * squares[1])
            assert norms.difference == pytest.approx(float((pg - ph).square().sum()), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_multiplied_in_single(dtype) -> None:
    g, h = torch.linspace(-2, 3, 4).to(dtype), torch.linspace(1e-4, 2e-4, 4).to(dtype)
    norms = squared_norms(masks.everything(FOUR), Vector({"a": g}), Vector({"a": h}))["a"]
    assert norms.inner == pytest.approx(float(g.double() @ h.double()), rel=1e-5)
    assert norms.perturbed == pytest.approx(float(h.double() @ h.double()), rel=1e-5)


def test_a_summary_has_means_maxima_and_the_share_below_zero() -> None:
    memory = {}
    for cosine, whole in ((0.5, 2.0), (0.25, 4.0), (-0.5, 3.0)):
        add_to_summary(memory, "core", Criteria(whole, 1.0, 1.0, 1.0, cosine))
    add_to_summary(memory, "full", Criteria(1.0, 1.0, 1.0, 1.0, 1.0))
    by_name = summaries(memory)
    core = by_name["core"]
    assert list(by_name) == ["core", "full"] and core.count == 3 and core.negative == pytest.approx(1 / 3)
    assert core.mean["c_norm"] == 3 and core.max["c_norm"] == 4
    assert core.mean["c_align"] == 3 and core.max["c_align"] == math.inf, "no bound holds for a negative alignment"
    assert core.min["cosine"] == -0.5 and core.min["alpha"] == 0, "their worst case is the least"
    assert core.mean["cosine"] == pytest.approx(0.25 / 3) and by_name["full"].max["q"] == 1
    assert "33% negative" in str(core) and latest(memory, "core", "cosine") == -0.5
    assert latest(memory, "nobody", "cosine") is None
    assert (times_measured(memory, "core"), times_measured(memory, "nobody")) == (3, 0)


def test_a_summary_has_the_steepest_secant_and_the_longest_perturbation() -> None:
    memory = {}
    for moved in (0.0, 0.5, 2.0):  # ‖G̃ − G‖ = 1
        add_to_summary(memory, "core", Criteria(2.0, 1.0, 1.0, 1.0, 0.5, moved, 1.0))
    core = summaries(memory)["core"]
    assert core.max["secant"] == 2 and latest(memory, "core", "secant") == 0.5
    assert core.max["bounded_perturbation"] == 2
    assert core.mean["secant"] == pytest.approx(1.25), "nothing was moved at the first"


def test_near_a_stationary_core_the_mean_is_finite_where_the_maximum_is_not() -> None:
    """Erratum E22."""
    memory = {}
    for masked in (1.0, 0.5, 0.0):
        add_to_summary(memory, "core", Criteria(2.0, masked, masked, masked, masked * masked))
    core = summaries(memory)["core"]
    assert core.max["c_norm"] == math.inf and core.mean["c_norm"] == 3
    assert core.mean["c_align"] == 1 and core.max["c_align"] == 1, "nan is in neither"
