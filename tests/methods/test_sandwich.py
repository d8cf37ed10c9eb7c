"""Largest, smallest, and random ones between."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from torch.nn import functional as F

from partialsgd import Context, methods, nest
from partialsgd.parameters import Parameters
from tests.methods.training import X, Y, backward, nested_loss, sgd_of, train
from tests.training import family

REFUSED_SETTINGS = [({"between": n}, f"between must be a whole number of at least 0, got {n}") for n in (-1, 1.5)]


def levels_of(nested, between: int, steps: int, seed: int = 0) -> list[list[str]]:
    sgd = sgd_of(nested, methods.sandwich(between=between), 0.01, seed=seed)
    closure = backward(lambda: F.cross_entropy(nested(X), Y))
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


def test_many_widths_are_drawn_evenly_and_in_every_pair() -> None:
    """Universally slimmable: six widths between, two of them at each step."""
    nested = family(*(k / 8 for k in range(1, 8)))
    method, parameters = methods.sandwich(between=2).bind(nested), Parameters(nested)
    pairs: Counter[tuple[str | None, ...]] = Counter()
    for t in range(450):
        largest, *middle, smallest = [branch.level for branch in method.branches(Context(t, 5, parameters, {}))]
        assert (largest, smallest) == ("full", "1/8")
        pairs[tuple(middle)] += 1
    widths = [f"{k}/8" if k % 2 else {2: "1/4", 4: "1/2", 6: "3/4"}[k] for k in range(7, 1, -1)]
    assert set(pairs) == set(itertools.combinations(widths, 2))
    assert all(abs(n - 30) < 4 * (450 * (1 / 15) * (14 / 15)) ** 0.5 for n in pairs.values())
    for width in widths:
        drawn = sum(n for pair, n in pairs.items() if width in pair)
        assert abs(drawn - 150) < 4 * (450 * (1 / 3) * (2 / 3)) ** 0.5


def test_a_resumed_run_draws_what_it_would_have_drawn() -> None:
    def run(steps: int, state: dict | None = None) -> tuple[list[list[str | None]], dict]:
        sgd = sgd_of(family(*(k / 8 for k in range(1, 8))), methods.sandwich(), 0.01, seed=3)
        if state is not None:
            sgd.load_state_dict(state)
        return [[level for level, _ in step.losses] for step in train(sgd, nested_loss, steps)], sgd.state_dict()

    whole, _ = run(20)
    first, state = run(8)
    assert whole[:8] == first and whole[8:] == run(12, state)[0]
    assert whole[8:] != whole[:12]


def test_one_level_is_no_sandwich() -> None:
    with pytest.raises(ValueError, match="needs a smallest level and a largest; there is 'full' alone"):
        methods.sandwich().bind(nest(torch.nn.Linear(2, 2), levels={}))
