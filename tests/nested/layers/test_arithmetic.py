"""Made and taken out in their own precision, whatever is switched on outside."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partialsgd import LayerSum, LowRank, Width, nest
from partialsgd.nested.layers.base import exact_arithmetic
from tests.zoo import again

AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
SPECS: dict[str, dict[str, Any]] = {
    "svd": {"spec": LowRank((1 / 4, 1 / 2))},
    "zero": {"spec": LowRank(1 / 4, init="zero")},
    "width": {"spec": Width((1 / 4, 1 / 2), order="norm")},
    "shared": {"spec": Width(1 / 2), "norms": "shared"},
    "sum": {"spec": LayerSum("3", again)},
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def x() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


def same(ours: nn.Module, theirs: nn.Module) -> None:
    a, b = ours.state_dict(), theirs.state_dict()
    assert list(a) == list(b)
    assert all(torch.equal(a[key], b[key]) and a[key].dtype is b[key].dtype for key in b)
    assert [p.requires_grad for p in ours.parameters()] == [p.requires_grad for p in theirs.parameters()]
    assert not any(p.is_inference() for p in ours.parameters())


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("around", AROUND)
def test_a_family_is_the_same_wherever_it_is_made_and_trains(kind: str, around: str) -> None:
    expected, given = nest(model(), **SPECS[kind]), model()
    with AROUND[around]():
        nested = nest(given, **SPECS[kind])
    same(nested, expected)
    nested(x()).sum().backward()
    assert all(p.grad is not None for p in nested.parameters(level="full"))


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("around", AROUND)
def test_a_level_is_the_same_wherever_it_is_taken_out_and_trains(kind: str, around: str) -> None:
    nested = nest(model(), **SPECS[kind])
    for level in nested.levels:
        with nested.at(level):
            nested(x())
    for level in nested.levels:
        expected = nested.extract(level)
        with AROUND[around]():
            plain = nested.extract(level)
        same(plain, expected)
        plain(x()).sum().backward()
        assert all(p.grad is not None for p in plain.parameters())


def test_what_was_on_is_on_again() -> None:
    network = model()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(ZeroDivisionError), exact_arithmetic(network):
            assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
            raise ZeroDivisionError
        assert not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
    with torch.inference_mode():
        with exact_arithmetic(network):
            assert not torch.is_inference_mode_enabled()
        assert torch.is_inference_mode_enabled()


def test_a_frozen_model_stays_frozen() -> None:
    for kind in SPECS:
        nested = nest(copy.deepcopy(model()).requires_grad_(False), **SPECS[kind])
        for level in nested.levels:
            with nested.at(level):
                nested(x())
        assert not any(p.requires_grad for level in nested.levels for p in nested.extract(level).parameters())
