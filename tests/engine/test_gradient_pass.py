"""One pass: entered once, left clean."""

from __future__ import annotations

import gc

import pytest
import torch

from partialsgd import PartialSGD, methods
from partialsgd.engine.step import StepInProgress
from partialsgd.testing.problems import PROBLEMS

MLP = next(p for p in PROBLEMS if p.name == "mlp")


def test_a_pass_runs_once() -> None:
    model = MLP.model()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1))
    for g in sgd.gradients():
        with g:
            MLP.closure(model, 0)()
        with pytest.raises(RuntimeError, match="taken already"), g:
            raise AssertionError("the body must not run")
    assert sgd.update().backwards == 1


def test_last_is_known_before_the_pass_runs() -> None:
    for method, expected in ((methods.plain(), [True]), (methods.top_k(0.1), [True]), (methods.sam(), [False, True])):
        model = MLP.model()
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)
        seen = []
        for g in sgd.gradients():
            seen.append(g.last)
            with g:
                MLP.closure(model, 0)()
        assert seen == expected


def test_keyboard_interrupt_restores_too() -> None:
    model = MLP.model()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), methods.dropout(0.5))
    before = [p.detach().clone() for p in model.parameters()]

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sgd.step(interrupted)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_step_is_gone_when_it_is_done_and_not_when_memory_is_collected() -> None:
    """A cycle would keep each step's gradient alive for a while: the memory of a second gradient."""
    gc.collect()
    gc.disable()
    try:
        for method in (methods.top_k(0.5), methods.sam(0.1), methods.dropout(0.5), methods.plain()):
            model = MLP.model()
            sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)
            for t in range(2):
                sgd.step(MLP.closure(model, t))
                assert not [o for o in gc.get_objects() if type(o) is StepInProgress], "the step is still there"
    finally:
        gc.enable()
