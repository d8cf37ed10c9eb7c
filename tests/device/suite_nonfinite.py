"""NaN on the device: the step moves nothing there, and the host raises one step later without having waited."""

from __future__ import annotations

import math

import pytest
import torch

from partialsgd import Method, Step, methods
from partialsgd.testing.runs import Run, assert_same_bits
from tests.device.cases import OPTIMIZERS, problem_for
from tests.device.pretended import on_device, watch

METHODS = {"plain": Method(), "dropout": methods.dropout(0.5), "random_mask": methods.random_mask(0.5)}


def started(method: str, optimizer: str, **options: object) -> Run:
    return Run(on_device(problem_for("plain")), OPTIMIZERS[optimizer], METHODS[method], False, None, options)


def bad_step(run: Run, t: int, bad: float = math.nan) -> Step:
    """A step with bad numbers in the gradient of the first parameter, of which every mask here moves a part."""
    good, name = run.closure(t), next(iter(run.sgd.parameters))

    def closure() -> torch.Tensor:
        loss = good()
        run.sgd.parameters[name].grad.fill_(bad)
        return loss

    return run.sgd.step(closure)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("at", [0, 2])
def test_a_step_that_is_not_finite_moves_nothing_and_raises_at_the_next(method: str, optimizer: str, at: int) -> None:
    run, untouched = started(method, optimizer), started(method, optimizer)
    for t in range(at):
        run.step(t)
        untouched.step(t)
    with watch() as traffic:
        bad_step(run, at)
    assert not [site for site in traffic.reads if site[1].startswith("engine/nonfinite.py")]
    for name, p in run.model.named_parameters():
        assert torch.equal(p, untouched.sgd.parameters[name]), name
    with pytest.raises(FloatingPointError, match=rf"the gradient of '.*' is NaN or infinite at step t = {at};"):
        run.step(at)
    assert run.sgd.t == at
    assert_same_bits(untouched.trained(), run.trained())  # the optimizer's state too
    for t in range(at, at + 2):
        run.step(t)
        untouched.step(t)
    assert_same_bits(untouched.trained(), run.trained())


def test_a_state_is_not_saved_before_the_last_step_is_known_to_be_finite() -> None:
    run = started("plain", "AdamW")
    run.step(0)
    bad_step(run, 1, math.inf)
    with pytest.raises(FloatingPointError, match="t = 1"):
        run.sgd.state_dict()
    assert run.sgd.state_dict()["t"] == run.sgd.t == 1


def test_a_loss_that_is_not_finite_is_named() -> None:
    run = started("plain", "SGD")
    run.sgd.step(lambda: run.closure(0)() * math.nan)
    with pytest.raises(FloatingPointError, match=r"the loss is NaN or infinite at step t = 0;"):
        run.step(0)


def test_skip_knows_at_once() -> None:
    run = started("plain", "AdamW", nonfinite="skip")
    assert not run.step(0).skipped
    assert bad_step(run, 1).skipped and run.sgd.t == 1
