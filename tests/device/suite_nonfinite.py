"""NaN on the device: the step moves nothing there, and the host raises one step later without having waited."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from partialsgd import Method, Step, methods, perturbations
from partialsgd.testing.problems import Problem
from partialsgd.testing.runs import Run, assert_same_bits
from tests.device.cases import BY_NAME, OPTIMIZERS, problem_for
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


class Scalar(nn.Module):
    """A network with a parameter of one number, whose optimizer's counter has the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


class Fused(torch.optim.SGD):
    """Like an optimizer from outside torch whose option `fused` has nothing to do with torch's."""

    __module__ = "elsewhere"

    def step(self, closure=None):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad)


def two_groups(parameters) -> torch.optim.Optimizer:
    first, *others = parameters
    return torch.optim.AdamW([{"params": [first], "fused": True}, {"params": others, "fused": False}], 0.01)


def with_hook(parameters) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(parameters, 0.01)
    optimizer.register_step_post_hook(lambda o, args, kwargs: [p.isnan().any().item() and 1 / 0 for p in parameters])
    return optimizer


def from_outside(parameters) -> torch.optim.Optimizer:
    optimizer = Fused(parameters, 0.01)
    optimizer.param_groups[0]["fused"] = True
    return optimizer


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.NAdam, two_groups, with_hook, from_outside])
def test_every_optimizer_is_left_as_it_was(make) -> None:
    problem = Problem("scalar", Scalar, problem_for("plain").evaluate)
    run = Run(on_device(problem), lambda parameters: make(list(parameters)), Method(), False)
    run.step(0)
    before = run.trained()
    with pytest.raises(FloatingPointError, match=r"'layer\.weight' is NaN.*t = 1;|'scale' is NaN.*t = 1;"):
        bad_step(run, 1)
        run.step(1)
    assert_same_bits(before, run.trained())
    assert run.sgd.t == 1 and run.step(1).t == 1


def test_a_checkpoint_may_be_loaded_after_a_bad_step() -> None:
    run = started("plain", "AdamW")
    run.step(0)
    saved = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict(), run.sgd.state_dict()))
    run.step(1)
    bad_step(run, 2)
    for part, state in zip((run.model, run.optimizer, run.sgd), saved, strict=True):
        part.load_state_dict(state)
    assert run.sgd.t == 1 and run.step(1).t == 1
    assert {float(state["step"]) for state in run.optimizer.state.values()} == {2.0}


def test_the_last_step_is_told_by_whatever_comes_next() -> None:
    for last in (lambda sgd: sgd.extract(), lambda sgd: sgd.state_dict()):
        run = started("plain", "AdamW")
        bad_step(run, 0)
        with pytest.raises(FloatingPointError, match="t = 0"):
            last(run.sgd)
    run = started("plain", "AdamW")
    bad_step(run, 0)
    for g in run.sgd.gradients():
        with g:
            run.closure(1)()
    with pytest.raises(FloatingPointError, match="t = 0"):
        run.sgd.state_dict()
    with pytest.raises(RuntimeError, match="no gradient to apply"):  # the step was begun with another t
        run.sgd.update()
    assert run.sgd.t == 0 and run.step(0).t == 0


def test_a_bad_number_at_x_that_is_gone_at_the_perturbed_point_is_told() -> None:
    calls = []

    def perturb(context):
        name, gradient = next(reversed(context.gradient.items()))
        return perturbations.add({name: torch.zeros_like(gradient)})

    run = Run(on_device(BY_NAME["mlp"]), OPTIMIZERS["SGD"], Method(perturb=perturb), False)

    def closure() -> torch.Tensor:
        loss = run.closure(0)()
        if not calls:
            run.sgd.parameters["0.weight"].grad.fill_(math.nan)
        calls.append(1)
        return loss

    run.sgd.step(closure)
    with pytest.raises(FloatingPointError, match=r"'0\.weight' is NaN or infinite at step t = 0"):
        run.step(0)
