"""Which blocks move, for how long, and what becomes of the state of the others."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch

from partialsgd import PartialSGD, methods
from partialsgd.testing.problems import Problem
from tests.methods.test_freezing import closure
from tests.methods.test_stages import loss_of, mlp
from tests.methods.training import are_equal, assert_resumes

LAWS = {
    "": methods.block_coordinate(every=2),
    "free": methods.block_coordinate(every=1, order="random", free=True),
}
REFUSED_PROBLEMS = dict.fromkeys(LAWS, ("quadratic",))
IDENTITY = [methods.block_coordinate(99, every=2, free=True)]
REFUSED_SETTINGS = [
    ({"active": 0}, "active must be a whole number"),
    ({"every": 0}, "every must be a whole number"),
    ({"order": "any"}, "order must be one of cyclic, random"),
]

BLOCKS = 5
PROBLEM = Problem("chain", lambda: mlp(BLOCKS), lambda model, t: loss_of(model))


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, 0.01)


def trained(steps: int, **options) -> tuple[list[tuple[int, ...]], PartialSGD, torch.nn.Module]:
    model = mlp(BLOCKS)
    sgd = PartialSGD(model, adam(model.parameters()), methods.block_coordinate(**options), seed=5)
    found = []
    for _ in range(steps):
        mask = sgd.step(closure(model)).mask
        found.append(tuple(k for k in range(BLOCKS) if mask[f"{2 * k}.weight"] is True))
    return found, sgd, model


def test_cyclic_blocks_take_turns() -> None:
    found, *_ = trained(24, active=2, every=3)
    assert found[::3] == [(0, 1), (2, 3), (0, 4), (1, 2), (3, 4), (0, 1), (2, 3), (0, 4)]
    assert all(found[3 * k] == found[3 * k + 1] == found[3 * k + 2] for k in range(8))


def test_random_blocks_leave_none_out_and_change_their_order() -> None:
    found, *_ = trained(200, active=1, every=2, order="random")
    turns = [turn[0] for turn in found[::2]]
    cycles = [tuple(turns[k : k + BLOCKS]) for k in range(0, len(turns), BLOCKS)]
    assert all(sorted(cycle) == list(range(BLOCKS)) for cycle in cycles)
    assert len(set(cycles)) > len(cycles) // 2
    two, *_ = trained(120, active=2, every=1, order="random")
    assert all(len(turn) == 2 for turn in two)
    assert all(set().union(*two[k : k + 3]) == set(range(BLOCKS)) for k in range(0, 120, 3))


def test_held_state_goes_on_where_it_stopped_and_freed_state_is_gone() -> None:
    for free in (False, True):
        model = mlp(3)
        optimizer = adam(model.parameters())
        sgd = PartialSGD(model, optimizer, methods.block_coordinate(every=2, free=free))
        for t in range(7):
            before = copy.deepcopy({p: dict(s) for p, s in optimizer.state.items()})
            sgd.step(closure(model))
            moving = model[2 * (t // 2 % 3)].weight
            assert float(optimizer.state[moving]["step"]) == (t % 2 + 1 if free or t < 6 else 3)
            others = [p for p in model.parameters() if p not in set(model[2 * (t // 2 % 3)].parameters())]
            if free:
                assert not any(p in optimizer.state for p in others), "the state of a block that stopped is still there"
            else:
                kept = [p for p in others if p in before]
                assert all(torch.equal(optimizer.state[p]["exp_avg"], before[p]["exp_avg"]) for p in kept)


def test_a_freed_block_begins_as_with_a_new_optimizer() -> None:
    model, twin = mlp(3), mlp(3)
    sgd = PartialSGD(model, adam(model.parameters()), methods.block_coordinate(every=3, free=True))
    for turn in range(5):
        own = adam(twin[2 * (turn % 3)].parameters())
        for _ in range(3):
            sgd.step(closure(model))
            twin.zero_grad()
            closure(twin)()
            own.step()
    assert are_equal(model, twin)


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("options", [{"free": True}, {"free": False}, {"order": "random", "free": True}], ids=str)
def test_a_run_that_stops_in_mid_block_goes_on_as_if_it_had_not(stop: int, options: dict) -> None:
    assert_resumes(methods.block_coordinate(2, every=3, **options), stop, 12, PROBLEM, adam)


def test_backward_ends_at_the_first_active_block() -> None:
    model = mlp(4)
    sgd = PartialSGD(model, adam(model.parameters()), methods.block_coordinate(every=1))
    seen: list[set[str]] = []
    for _ in range(4):
        sgd.step(closure(model, seen))
    assert [len(names) for names in seen] == [8, 6, 4, 2]
    assert all(later < earlier for earlier, later in pairwise(seen))


def test_state_is_not_freed_and_given_in_one() -> None:
    model = mlp(3)
    sgd = PartialSGD(model, adam(model.parameters()), methods.block_coordinate(free=True), outside="decay")
    with pytest.raises(ValueError, match="outside='decay' updates state that the method resets"):
        sgd.step(closure(model))
