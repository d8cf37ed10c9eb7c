"""When a stage stops, that its backward is not run, and the prefix that a criterion allows."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from partialsgd import CriteriaMeter, Method, masks, methods
from partialsgd.methods.freezing import longest_prefix
from tests.methods.test_stages import loss_of, mlp
from tests.methods.training import sgd_of

LAWS = {
    "": methods.freezing(steps=4, start=0.0),
    "criterion": methods.freezing("criterion", budget=1.3, every=3),
}
REFUSED_PROBLEMS = dict.fromkeys(LAWS, ("quadratic",))
IDENTITY = [methods.freezing(steps=10, start=1.0)]
REFUSED_SETTINGS = [
    ({"by": "often"}, "by must be one of linear, cubic, criterion"),
    ({"start": 1.5}, r"start must be in \[0, 1\]"),
    ({"budget": 0.9}, "budget must be from 1"),
    ({"steps": 0}, "steps must be a whole number"),
]


def closure(model: nn.Module, log: list | None = None):
    def run() -> Tensor:
        loss = loss_of(model)
        loss.backward()
        if log is not None:
            log.append({n for n, p in model.named_parameters() if p.grad is not None})
        return loss

    return run


@pytest.mark.parametrize(("by", "ends"), [("linear", [50, 67, 84]), ("cubic", [13, 30, 58])])
def test_stages_stop_when_the_schedule_says(by: str, ends: list[int]) -> None:
    """steps = 100, start = 1/2, four stages: r = 1/2, 2/3, 5/6; the last never stops."""
    model = mlp(4)
    sgd = sgd_of(model, methods.freezing(by, steps=100, start=0.5), 0.01)
    seen: list[set[str]] = []
    for t in range(110):
        mask = sgd.step(closure(model, seen)).mask
        stopped = [mask[f"{2 * k}.weight"] is False for k in range(4)]
        assert stopped == [t >= end for end in ends] + [False]
        whole = set(mask) if t == 0 else set()  # the first pass is looked at
        assert seen[-1] == {n for n in mask if mask[n] is True} | whole, "backward ran where nothing moves"


def test_the_longest_prefix_by_brute_force() -> None:
    values = (0.0, 0.1, 1.0, 3.0)
    for norms in itertools.product(values, repeat=4):
        for budget in (1.0, 1.1, 2.0):
            allowed = [0]
            for k in (1, 2, 3):
                rest = math.sqrt(sum(n * n for n in norms[k:]))
                whole = math.sqrt(sum(n * n for n in norms))
                if whole <= budget * rest * (1 + 1e-12):
                    allowed.append(k)
            assert longest_prefix(list(norms), budget) == max(allowed), (norms, budget)


def test_by_criterion_the_measured_c_norm_stays_under_the_budget_and_a_stage_thaws_when_it_does_not() -> None:
    """A stage whose gradient grows again is freed at the next measurement."""
    model = mlp(3)
    scale = {"0": 1e-3}

    def run() -> Tensor:
        x = torch.arange(24.0).view(4, 6).cos()
        h = model[1](model[0](x))
        h = scale["0"] * h + (1 - scale["0"]) * h.detach()  # how much of the gradient reaches the first stage
        loss = model[5](model[4](model[3](model[2](h)))).square().sum()
        loss.backward()
        return loss

    sgd = sgd_of(model, methods.freezing("criterion", budget=1.2, every=4), 1e-4)
    frozen = []
    for t in range(12):
        scale["0"] = 1e-3 if t < 6 else 100.0
        step = sgd.step(run)
        frozen.append(step.mask["0.weight"] is False)
        assert step.backwards == 1
        if t % 4 == 0:
            run()
            squares = {n: float(p.grad.square().sum()) for n, p in model.named_parameters()}
            inside = sum(v for n, v in squares.items() if step.mask[n] is True)
            assert math.sqrt(sum(squares.values()) / inside) <= 1.2 * 1.001
            model.zero_grad()
    assert frozen == [True] * 8 + [False] * 4


def test_it_is_frozen_by_the_number_that_the_meter_finds() -> None:
    """A budget right above the measured c_norm of a prefix freezes it, one right below does not."""
    model = mlp(3)
    for prefix in (1, 2):
        inside = [f"{2 * k}" for k in range(prefix, 3)]
        only = Method(mask=lambda context, names=inside: masks.only(context.parameters.model, names), name="rest")
        probe = sgd_of(model, only, 0.0, meter=CriteriaMeter(1, groups={}))
        c_norm = probe.step(closure(model)).criteria.c_norm
        for factor, expected in ((1 + 1e-9, prefix), (1 - 1e-9, prefix - 1)):
            sgd = sgd_of(model, methods.freezing("criterion", budget=c_norm * factor, cut=False), 0.0)
            mask = sgd.step(closure(model)).mask
            assert [mask[f"{2 * k}.weight"] for k in range(3)].index(True) == expected
