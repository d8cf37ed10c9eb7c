"""A dimension in shares: cut, joined and padded as loops over groups and units would."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from partialsgd.nested.layers.axes import Axis
from tests.nested.checks import many


class Case(NamedTuple):
    axis: Axis
    bounds: list[int]
    tensor: Tensor
    dim: int


@st.composite
def cases(draw) -> Case:
    full, groups, tail = draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(st.integers(0, 3))
    bounds = sorted({*draw(st.lists(st.integers(1, full), max_size=3)), full})
    length, dim = groups * full + tail, draw(st.integers(0, 2))
    order = torch.tensor(draw(st.permutations(range(length)))) if draw(st.booleans()) else None
    axis = Axis(full, {str(n): n for n in bounds[:-1]}, groups, tail, order)
    shape = [2, 3]
    shape.insert(dim, length)
    return Case(axis, bounds, torch.arange(2.0 * 3 * length).view(shape), dim)


def places(axis: Axis, units: int) -> list[int]:
    """Where the first units of every group lie, and the tail."""
    body = [group * axis.full + unit for group in range(axis.groups) for unit in range(units)]
    return body + [axis.groups * axis.full + i for i in range(axis.tail)]


@many
@given(cases())
def test_the_shares_joined_are_the_level_and_all_of_them_are_the_whole(case: Case) -> None:
    axis, bounds, tensor, dim = case
    values = axis.permuted(tensor, dim)
    parts = [axis.between(values, dim, low, high) for low, high in zip([0, *bounds], bounds, strict=False)]
    for count, units in enumerate(bounds, start=1):
        joined = axis.join(parts[:count], dim)
        assert torch.equal(joined, values.index_select(dim, torch.tensor(places(axis, units))))
        assert joined.shape[dim] == axis.length(str(units))
    assert torch.equal(axis.join(parts, dim), values)
    assert sum(part.numel() for part in parts) == tensor.numel()


@many
@given(cases())
def test_joining_two_by_two_is_joining_at_once(case: Case) -> None:
    axis, bounds, tensor, dim = case
    parts = [axis.between(tensor, dim, low, high) for low, high in zip([0, *bounds], bounds, strict=False)]
    joined = parts[0]
    for part in parts[1:]:
        joined = axis.join([joined, part], dim)
    assert torch.equal(joined, tensor)


@many
@given(cases())
def test_order_says_which_unit_of_the_original_comes_where(case: Case) -> None:
    axis, _, tensor, dim = case
    values = axis.permuted(tensor, dim)
    if axis.order is None:
        assert values is tensor
    else:
        for place, unit in enumerate(axis.order.tolist()):
            assert torch.equal(values.select(dim, place), tensor.select(dim, unit))


@many
@given(cases())
def test_padding_puts_zeros_in_the_places_of_the_missing_units_and_nowhere_else(case: Case) -> None:
    axis, bounds, _, _ = case
    for units in bounds:
        y = 1.0 + torch.arange(2.0 * axis.length(str(units))).view(2, -1)
        padded, expected = axis.pad(y, str(units)), torch.zeros(2, axis.length("full"))
        expected[:, places(axis, units)] = y
        assert torch.equal(padded, expected)


def test_padding_of_all_units_is_nothing() -> None:
    y = torch.ones(2, 7)
    assert Axis(3, {"core": 1}, 2, 1).pad(y, "full") is y


def test_units_of_a_level() -> None:
    axis = Axis(8, {"small": 2, "medium": 8}, groups=3, tail=5)
    assert [axis.units(level) for level in ("small", "medium", "full")] == [2, 8, 8]
    assert [axis.length(level) for level in ("small", "full")] == [11, 29]
    assert Axis(7).units("anything") == 7 and Axis(7).length("full") == 7


@pytest.mark.parametrize("dim", [0, 1])
def test_the_tail_belongs_to_the_first_share_only(dim: int) -> None:
    tensor = torch.arange(49.0).view(7, 7)
    axis = Axis(3, {"core": 1}, 2, 1)
    first, rest = axis.between(tensor, dim, 0, 1), axis.between(tensor, dim, 1, 3)
    assert torch.equal(first, tensor.index_select(dim, torch.tensor([0, 3, 6])))
    assert torch.equal(rest, tensor.index_select(dim, torch.tensor([1, 2, 4, 5])))
