"""The criteria against vectors written out, at the edges, and where two of the paper's statements break."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from partialsgd import masks, theory
from partialsgd.meters.criteria import Criteria, criteria
from partialsgd.vectors import Vector


def two() -> nn.Module:
    return nn.ParameterDict({"a": nn.Parameter(torch.zeros(3)), "b": nn.Parameter(torch.zeros(2, 2))})


def test_they_are_the_ratios_of_the_masked_vectors() -> None:
    model = two()
    inside = torch.tensor([True, False, True])
    mask = masks.from_tensors(model, {"a": inside, "b": True})
    g = {"a": torch.tensor([1.0, 2.0, 3.0]), "b": torch.tensor([[1.0, -1.0], [0.5, 2.0]])}
    h = {"a": torch.tensor([2.0, 9.0, 1.0]), "b": torch.tensor([[0.0, -1.0], [1.0, 2.0]])}
    found = criteria(mask, Vector(g), Vector(h))
    p = torch.tensor([1.0, 0, 1, 1, 1, 1, 1])
    x, y = (torch.cat([v["a"], v["b"].flatten()]) for v in (g, h))
    px, py = p * x, p * y
    assert found.c_norm == pytest.approx(float(x.norm() / px.norm()))
    assert found.c_sim == pytest.approx(float(px.norm() / py.norm()))
    assert found.c_align == pytest.approx(float(px.norm() * py.norm() / (px @ py)))
    assert found.alpha == pytest.approx(float((px @ py) / (py @ py)))
    assert found.q == pytest.approx(float(x.norm() / (found.alpha * py.norm())))
    assert found.q == pytest.approx(found.c_norm * max(found.c_sim, found.c_align))


def test_plain_training_gives_one_exactly() -> None:
    g = Vector({"a": torch.tensor([0.1, 0.7, -0.3]), "b": torch.full((2, 2), 1 / 3)})
    found = criteria(masks.everything(two()), g, g)
    assert found.alpha == 1
    assert (found.c_norm, found.c_sim, found.c_align, found.cosine, found.q) == (1, 1, 1, 1, 1)


def test_negative_alignment_is_negative_and_alpha_is_clipped() -> None:
    """Erratum E10: G = 1, G̃ = −1/2 would give α = −2."""
    found = Criteria(whole=1.0, masked=1.0, shared=1.0, perturbed=0.5, inner=-0.5)
    assert found.c_align == -1.0 and found.alpha == 0.0 and found.q == math.inf


def test_zero_norms_give_infinities_and_not_errors() -> None:
    nothing = Criteria(1.0, 0.0, 0.0, 0.0, 0.0)
    assert nothing.c_norm == math.inf and math.isnan(nothing.c_sim) and math.isnan(nothing.c_align)
    assert math.isnan(nothing.alpha) and nothing.q == math.inf, "there is a gradient, and the step sees nothing of it"
    assert math.isnan(Criteria(0.0, 0.0, 0.0, 0.0, 0.0).q)
    assert Criteria(1.0, 1.0, 1.0, 1.0, 0.0).c_align == math.inf


def test_what_one_pass_did_not_use_is_in_neither_vector() -> None:
    g = Vector({"a": torch.tensor([3.0, 0.0, 4.0]), "b": torch.ones(2, 2)})
    h = Vector({"a": torch.tensor([3.0, 0.0, 4.0])})
    found = criteria(masks.everything(two()), g, h)
    assert (found.shared, found.perturbed, found.inner) == (5, 5, 25)
    assert found.c_norm == pytest.approx(1, abs=1e-7), "nothing was masked"
    assert found.c_sim == 1 and found.left_out == 4


def test_alpha_and_q_are_those_of_the_theory() -> None:
    for numbers in (
        (2.0, 1.0, 0.5, 0.3),
        (2.0, 1.0, 3.0, 2.9),
        (2.0, 1.0, 0.5, -0.3),
        (2.0, 1.0, 0.0, 0.0),
        (0, 0, 1, 0),
    ):
        whole, masked, perturbed, inner = map(float, numbers)
        found = Criteria(whole, masked, masked, perturbed, inner)
        alpha = theory.alpha(inner=inner, perturbed=perturbed)
        q = theory.q(whole=whole, masked=masked, perturbed=perturbed, inner=inner)
        for ours, theirs in ((found.alpha, alpha), (found.q, q)):
            assert ours == pytest.approx(theirs, nan_ok=True), numbers


def test_no_numbers_raise() -> None:
    """A pass at x that overflows must not stop a run that would go on without it."""
    edges = (0.0, 1e-300, 1.0, 1e300, math.inf, math.nan)
    for whole, masked, perturbed in itertools.product(edges, edges, edges):
        for inner in (*edges, -1.0, -math.inf):
            found = Criteria(whole, masked, masked, perturbed, inner, 1.0, 1.0)
            assert all(isinstance(value, float | int) for value in found.numbers().values())
            assert len(found.squared) == 3 and (math.isnan(found.alpha) or 0 <= found.alpha <= 1)
    assert math.isnan(Criteria(math.inf, math.inf, math.inf, 1.0, -math.inf).alpha), "an overflow says nothing of α"
