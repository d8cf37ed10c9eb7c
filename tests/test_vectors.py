"""Gradients by name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from partialsgd import vectors
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector


def net() -> tuple[nn.Module, Parameters]:
    model = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 3))
    for p in model.parameters():
        p.grad = torch.randn(p.shape)
    return model, Parameters(model)


def test_taking_moves_and_cloning_survives_a_reused_buffer() -> None:
    _, x = net()
    buffer = x["0.bias"].grad
    taken = vectors.take(x, clone=True)
    assert all(p.grad is None for p in x.values())
    buffer.zero_()
    assert float(taken["0.bias"].abs().sum()) > 0
    vectors.put(x, taken)
    assert x["0.bias"].grad is taken["0.bias"]


def test_the_norm_is_over_all_parameters_and_computed_once() -> None:
    vector = Vector({"a": torch.full((2,), 3.0), "b": torch.full((2,), 4.0)})
    assert vector.norm() == pytest.approx(math.sqrt(50))
    vector["a"].zero_()
    assert vector.norm() == pytest.approx(math.sqrt(50))
    assert Vector({}).norm() == 0.0


def test_adding_is_a_weighted_sum_over_the_union() -> None:
    total = {"a": torch.tensor([1.0])}
    vectors.add(total, {"a": torch.tensor([2.0]), "b": torch.tensor([3.0])}, 0.5)
    assert {name: float(g) for name, g in total.items()} == {"a": 2.0, "b": 1.5}


def test_the_inner_product_is_that_of_double_precision_to_seven_digits() -> None:
    """Added up in one go in single precision, three million squares would be wrong in the sixth."""
    a, b = torch.randn(2, 3_000_001, generator=torch.Generator().manual_seed(0))
    assert float(vectors.inner(a, a)) == pytest.approx(float(a.double() @ a.double()), rel=1e-7)
    assert float(vectors.inner(a, b)) == pytest.approx(float(a.double() @ b.double()), abs=1e-7 * 3e6)
    matrix = torch.randn(5, 7, dtype=torch.float64)
    assert float(vectors.inner(matrix.t(), matrix.t())) == pytest.approx(float(matrix.square().sum()), rel=1e-14)
    assert vectors.inner(torch.ones(2), torch.ones(2)).dtype is torch.float64


def test_the_distance_is_not_what_rounding_leaves_of_three_squares() -> None:
    a = torch.randn(300_000, generator=torch.Generator().manual_seed(0))
    b = a + 1e-4 * torch.randn(300_000, generator=torch.Generator().manual_seed(1))
    assert float(vectors.squared_distance(a, b)) == pytest.approx(
        float((a.double() - b.double()).square().sum()), rel=1e-5
    )
    assert float(vectors.squared_distance(a, a)) == 0


def test_the_inner_product_is_the_same_wherever_the_numbers_lie() -> None:
    for count in (9, 33, 100, 1000, 5000):
        numbers = torch.randn(count)
        for offset in range(1, 16):
            moved = torch.empty(count + 16)[offset : offset + count].copy_(numbers)
            assert torch.equal(vectors.inner(moved, moved), vectors.inner(numbers, numbers))
