"""W[:m, :n]x + b[:m]: every level is a corner of the whole layer, held once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from partialsgd.nested.layers.axes import Axis
from partialsgd.nested.layers.base import level_parameters
from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.nested.switch import Switch
from tests.nested.checks import many

SMALL = ("a", "b", "c")


class Case(NamedTuple):
    layer: nn.Module
    rows: Axis
    columns: Axis
    levels: tuple[str, ...]
    x: Callable[[int], Tensor]


def growing(draw, full: int, levels: tuple[str, ...]) -> dict[str, int]:
    return dict(zip(levels, sorted(draw(st.lists(st.integers(1, full), min_size=len(levels), max_size=len(levels)))),
                    strict=True))  # fmt: skip


@st.composite
def axes(draw, levels: tuple[str, ...], *, headed: bool) -> Axis:
    full = draw(st.integers(1, 5))
    groups, tail = (draw(st.integers(1, 3)), draw(st.integers(0, 2))) if headed else (1, 0)
    length = groups * full + tail
    if draw(st.integers(0, 4)) == 0:
        return Axis(length)
    order = torch.tensor(draw(st.permutations(range(length)))) if draw(st.booleans()) else None
    return Axis(full, growing(draw, full, levels), groups, tail, order)


@st.composite
def cases(draw, *, pads: bool = False) -> Case:
    levels = SMALL[: draw(st.integers(1, 3))]
    rows, columns = draw(axes(levels, headed=True)), draw(axes(levels, headed=False))
    if pads:
        columns = Axis(columns.length("full"))
    outputs, inputs = rows.length("full"), columns.length("full")
    bias, kind = draw(st.booleans()), "linear" if pads else draw(st.sampled_from(["linear", "conv", "Conv1D"]))
    if kind == "conv":
        layer: nn.Module = nn.Conv2d(inputs, outputs, (2, 3), bias=bias)
        return Case(layer.double(), rows, columns, levels, lambda n: torch.randn(2, n, 4, 4, dtype=torch.float64))
    if kind == "linear":
        layer = nn.Linear(inputs, outputs, bias=bias)
    else:
        from transformers.pytorch_utils import Conv1D

        layer = Conv1D(outputs, inputs)
        nn.init.normal_(layer.bias)
    return Case(layer.double(), rows, columns, levels, lambda n: torch.randn(2, 3, n, dtype=torch.float64))


def built(case: Case, *, pads: bool = False) -> NarrowLayer:
    form = linear_map_of(case.layer)
    assert isinstance(form, LinearMap)
    return NarrowLayer(case.layer, form, case.rows, case.columns, Switch((*case.levels, "full")), pads=pads)


def kept_places(axis: Axis, level: str) -> list[int]:
    kept = [group * axis.full + unit for group in range(axis.groups) for unit in range(axis.units(level))]
    return kept + [axis.groups * axis.full + i for i in range(axis.tail)]


def places(axis: Axis, level: str) -> Tensor:
    """The units of the original layer that a level has, in their order."""
    order = torch.arange(axis.length("full")) if axis.order is None else axis.order
    return order[torch.tensor(kept_places(axis, level))]


def corner(case: Case, level: str) -> tuple[Tensor, Tensor | None]:
    weight = case.layer.weight.detach()
    weight = weight.t() if type(case.layer).__name__ == "Conv1D" else weight
    rows, columns = places(case.rows, level), places(case.columns, level)
    return weight[rows][:, columns], None if case.layer.bias is None else case.layer.bias.detach()[rows]


@many
@given(cases())
def test_every_level_is_the_corner_of_the_whole(case: Case) -> None:
    made = built(case)
    for level in (*case.levels, "full"):
        with made.switch.at(level):
            weight, bias = corner(case, level)
            assert torch.equal(made.linear.stored(weight), made.weight)
            assert (made.bias is None) == (bias is None) and (bias is None or torch.equal(bias, made.bias))
            assert (made.out_features, made.in_features) == tuple(weight.shape[:2])
            x = case.x(weight.shape[1])
            expected = F.conv2d(x, weight, bias) if made.linear.kind == "conv2d" else F.linear(x, weight, bias)
            torch.testing.assert_close(made(x), expected)
            plain = made.extract(level, {})
            assert type(plain) is type(case.layer) and torch.equal(plain.weight, made.weight)
            torch.testing.assert_close(plain(x), expected)


@many
@given(cases())
def test_every_number_is_held_once_and_has_the_gradient_of_the_corner(case: Case) -> None:
    """A nested model whose numbers are gradients shows, joined, which gradient belongs where."""
    made, inside = built(case), set()
    for level in (*case.levels, "full"):
        weight, bias = corner(case, level)
        leaves = [t.requires_grad_() for t in (weight.clone(), bias) if t is not None]
        now = list(level_parameters(made, level))
        assert len(set(now)) == len(now) and inside <= set(now), "levels contain each other"
        assert sum(p.numel() for p in now) == sum(leaf.numel() for leaf in leaves)
        inside, x = set(now), case.x(weight.shape[1])
        with made.switch.at(level):
            y = made(x)
        mixture = torch.randn_like(y)
        theirs = made.linear.apply(x, leaves[0], None if bias is None else leaves[1])
        expected = torch.autograd.grad((theirs * mixture).sum(), leaves)
        ours, numbers = torch.autograd.grad((y * mixture).sum(), now), built(case)
        with torch.no_grad():
            for p, g in zip(level_parameters(numbers, level), ours, strict=True):
                p.copy_(g)
        torch.testing.assert_close(numbers.weight_at(level), made.linear.stored(expected[0]))
        if bias is not None:
            torch.testing.assert_close(numbers.bias_at(level), expected[1])
    assert inside == set(made.parameters())


@many
@given(cases(pads=True))
def test_padded_outputs_have_their_width_and_zeros_in_the_places_of_missing_units(case: Case) -> None:
    made = built(case, pads=True)
    axis = case.rows
    for level in (*case.levels, "full"):
        with made.switch.at(level):
            weight, bias = corner(case, level)
            x = case.x(weight.shape[1])
            expected = torch.zeros(2, 3, axis.length("full"), dtype=torch.float64)
            kept = kept_places(axis, level)
            expected[..., kept] = F.linear(x, weight, bias)
            torch.testing.assert_close(made(x), expected)
            torch.testing.assert_close(made.extract(level, {})(x), expected)
            outside = [i for i in range(expected.shape[-1]) if i not in kept]
            assert not made(x)[..., outside].any()
            assert made.out_features == axis.length("full"), "whoever reads it sees the width of the outputs"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6,), (0, 6), (4, 6), (2, 3, 6), (2, 1, 3, 6)])
def test_the_sum_over_columns_is_the_joined_product(shape: tuple[int, ...], bias: bool) -> None:
    """If only the inputs are nested, the products with their blocks are added up."""
    layer = nn.Linear(6, 5, bias=bias).double()
    form = linear_map_of(layer)
    assert isinstance(form, LinearMap)
    made = NarrowLayer(layer, form, Axis(5), Axis(6, {"a": 1, "b": 4}), Switch(("a", "b", "full")))
    for level, inputs in (("a", 1), ("b", 4), ("full", 6)):
        x = torch.randn(*shape[:-1], inputs, dtype=torch.float64)
        with made.switch.at(level):
            y = made(x)
            assert y.shape == (*shape[:-1], 5)
            torch.testing.assert_close(y, form.apply(x, made._joined(level), made.bias))
