"""One stage at a time."""

from __future__ import annotations

import torch

from partialsgd import PartialSGD, methods
from tests.methods.test_freezing import closure
from tests.methods.test_stages import mlp
from tests.methods.training import are_equal, sgd_of

LAWS = {"": methods.layerwise(2)}
REFUSED_PROBLEMS = dict.fromkeys(LAWS, ("quadratic",))
REFUSED_SETTINGS = [({"every": 0}, "every must be a whole number")]


def test_each_stage_is_trained_as_if_the_others_were_constants() -> None:
    """Against a loop that hands one stage after the other to an optimizer of its own, to the bit."""
    model, twin = mlp(3), mlp(3)
    sgd = PartialSGD(model, torch.optim.Adam(model.parameters(), 0.01), methods.layerwise(4))
    for stage in (0, 2, 4):
        own = torch.optim.Adam(twin[stage].parameters(), 0.01)
        for _ in range(4 if stage < 4 else 9):
            sgd.step(closure(model))
            twin.zero_grad()
            closure(twin)()
            own.step()
    assert sgd.t == 17
    assert are_equal(model, twin)


def test_backward_ends_at_the_stage_and_what_always_moves_moves() -> None:
    model = mlp(3)
    sgd = sgd_of(model, methods.layerwise(2, always=["4"]), 0.01)
    seen: list[set[str]] = []
    for t in range(8):
        mask = sgd.step(closure(model, seen)).mask
        stage = min(t // 2, 2)
        assert {n for n in mask if mask[n] is True} == {f"{k}.{p}" for k in (2 * stage, 4) for p in ("weight", "bias")}
        assert seen[-1] == {f"{2 * k}.{p}" for k in range(stage, 3) for p in ("weight", "bias")}  # all, at t = 0
