"""Largest, smallest, and random ones between."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from partialsgd import PartialSGD, methods
from tests.families import family

X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


def levels_of(nested, between: int, steps: int, seed: int = 0) -> list[list[str]]:
    method = methods.sandwich(nested, between=between)
    sgd = PartialSGD(nested, torch.optim.SGD(nested.parameters(), 0.01), method, seed=seed)

    def closure():
        loss = F.cross_entropy(nested(X), Y)
        loss.backward()
        return loss

    return [[level for level, _ in sgd.step(closure).losses] for _ in range(steps)]


def test_both_ends_always_and_different_ones_between() -> None:
    nested = family(1 / 6, 1 / 4, 1 / 2, 3 / 4)
    seen = levels_of(nested, 2, 30)
    assert all(step[0] == "full" and step[-1] == "1/6" and len(step) == 4 for step in seen)
    middles = {tuple(step[1:-1]) for step in seen}
    assert middles == {("3/4", "1/2"), ("3/4", "1/4"), ("1/2", "1/4")}  # every pair, the larger first
    assert seen == levels_of(nested, 2, 30) != levels_of(nested, 2, 30, seed=1)


def test_with_few_levels_it_takes_what_there_is() -> None:
    assert levels_of(family(), 2, 2) == [["full", "core"]] * 2
    assert levels_of(family(0.25, 0.5), 0, 2) == [["full", "1/4"]] * 2


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        methods.sandwich(family(), between=-1)
