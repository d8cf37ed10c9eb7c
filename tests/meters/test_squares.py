"""Squares and inner products of each parameter: exact enough, and of the right coordinates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd import masks
from partialsgd._util.bitwise_select import over_rows
from partialsgd.meters.squares import Squares, added, squares
from partialsgd.vectors import Vector


def model() -> nn.Module:
    return nn.ParameterDict({name: nn.Parameter(torch.zeros(4)) for name in "abcd"})


def test_each_parameter_by_itself_and_what_one_pass_left_out() -> None:
    g = torch.tensor([1.0, 2.0, 3.0, 4.0])
    h = torch.tensor([0.0, 1.0, -1.0, 2.0])
    inside = torch.tensor([True, False, True, True])
    mask = masks.from_tensors(model(), {"a": inside, "b": True, "c": inside})
    found = squares(mask, Vector({"a": g, "b": g, "d": g}), Vector({"a": h, "c": h}))
    assert found["a"] == Squares(whole=30, masked=26, shared=26, perturbed=5, inner=5, apart=21)
    assert found["b"] == Squares(whole=30, masked=30, left_out=4)
    assert found["c"] == Squares(left_out=3)
    assert found["d"] == Squares(whole=30), "outside the mask it belongs to the whole gradient only"
    assert added(found.values()) == Squares(90, 56, 26, 5, 5, 21, 7)
    assert squares(mask, Vector({}), Vector({})) == {} and added([]) == Squares()


def test_a_masked_part_is_what_the_mask_leaves_also_of_odd_layouts() -> None:
    big = nn.ParameterDict({"a": nn.Parameter(torch.zeros(600, 700))})
    g, h = torch.randn(2, 600, 700, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(600) % 3 == 0
    for inside in (torch.rand(600, 700, generator=torch.Generator().manual_seed(1)) < 0.3, over_rows(rows, (600, 700))):
        mask = masks.from_tensors(big, {"a": inside})
        for x, y in ((g, h), (g.t().contiguous().t(), h)):
            found = squares(mask, Vector({"a": x}), Vector({"a": y}))["a"]
            pg, ph = (g * inside).double(), (h * inside).double()
            expected = [
                float((u * v).sum()) for u, v in ((g.double(), g.double()), (pg, pg), (pg, pg), (ph, ph), (pg, ph))
            ]
            assert list(found[:4]) == pytest.approx(expected[:4], rel=1e-6)
            assert found.inner == pytest.approx(expected[4], abs=1e-6 * expected[1])
            assert found.apart == pytest.approx(float((pg - ph).square().sum()), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_multiplied_in_single(dtype) -> None:
    g = torch.linspace(-2, 3, 4).to(dtype)
    h = torch.linspace(1e-4, 2e-4, 4).to(dtype)
    found = squares(masks.everything(model()), Vector({"a": g}), Vector({"a": h}))
    assert found["a"].inner == pytest.approx(float(g.double() @ h.double()), rel=1e-5)
    assert found["a"].perturbed == pytest.approx(float(h.double() @ h.double()), rel=1e-5)
