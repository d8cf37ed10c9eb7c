"""Uphill, to distance rho, at every n-th step of a level."""

from __future__ import annotations

import pytest
import torch

from partialsgd import Branch, Method, methods
from partialsgd.testing.problems import Quadratic
from partialsgd.testing.runs import Run
from tests.methods.test_extragradient import points
from tests.methods.training import MLP, assert_resumes, backward, sgd_of

LAWS = {
    "": methods.sam(0.1),
    "adaptive": methods.sam(0.5, adaptive=True),
    "interval": methods.sam(0.1, interval=2),
}
IDENTITY = [methods.sam(0.0), methods.sam(0.0, adaptive=True, interval=2)]
REFUSED_SETTINGS = [
    ({"rho": -0.1}, "rho must not be negative, got -0.1"),
    ({"rho": float("nan")}, "rho must not be negative"),
    *(({"interval": wrong}, f"interval must be a whole number of at least 1, got {wrong}") for wrong in (0, -1, 1.5)),
]


def test_the_point_is_at_distance_rho_uphill() -> None:
    for rho in (0.01, 0.5):
        seen, model = points(methods.sam(rho))
        delta, gradient = seen[1] - seen[0], model.h * (seen[0] - model.c)
        assert float(delta.norm()) == pytest.approx(rho, rel=1e-4)
        assert float(torch.dot(delta, gradient) / delta.norm() / gradient.norm()) == pytest.approx(1.0, abs=1e-5)


def test_adaptive_distance_is_rho_relative_to_the_weights() -> None:
    """δ = ρ x² g / ‖|x| g‖, so that ‖δ / |x|‖ = ρ where no weight is zero."""
    seen, model = points(methods.sam(0.5, adaptive=True))
    x, gradient = seen[0], model.h * (seen[0] - model.c)
    delta = seen[1] - x
    torch.testing.assert_close(delta, 0.5 * x**2 * gradient / (x.abs() * gradient).norm())
    assert float((delta / x.abs()).norm()) == pytest.approx(0.5, rel=1e-4)


def backwards(method: Method, steps: int) -> list[int]:
    run = Run(MLP, torch.optim.AdamW, method, False)
    return [run.step(t).backwards for t in range(steps)]


def levels_in_turn(method: Method, levels: str) -> Method:
    """One level a step, as alternating does it."""
    each = {level: Branch(perturb=method.perturb, level=level) for level in levels}
    return Method(branches=lambda context: [each[levels[context.t % len(levels)]]], name="in turn")


def test_every_nth_step_and_the_first() -> None:
    assert backwards(methods.sam(0.1), 4) == [2, 2, 2, 2]
    assert backwards(methods.sam(0.1, interval=2), 6) == [2, 1, 2, 1, 2, 1]
    assert backwards(methods.sam(0.5, adaptive=True, interval=3), 7) == [2, 1, 1, 2, 1, 1, 2]


@pytest.mark.parametrize(("interval", "levels"), [(2, "ab"), (4, "ab"), (3, "abb"), (2, "abab")])
def test_each_level_has_its_own_turns(interval: int, levels: str) -> None:
    """Counted by t, an even interval would give one of two alternating levels all the turns."""
    counted = backwards(levels_in_turn(methods.sam(0.1, interval=interval), levels), 24)
    for level in set(levels):
        own = [n for t, n in enumerate(counted) if levels[t % len(levels)] == level]
        assert own == [2 if k % interval == 0 else 1 for k in range(len(own))]
    perturb = methods.sam(0.1, interval=2).perturb
    both = Method(branches=lambda context: [Branch(perturb=perturb, level=level) for level in "ab"])
    assert backwards(both, 4) == [4, 2, 4, 2], "also in one step"


def test_the_steps_between_are_plain() -> None:
    """SGD by hand on the quadratic: at the worst point nearby, then three plain steps, and so on."""
    model = Quadratic()
    sgd = sgd_of(model, methods.sam(0.2, interval=4), 0.01)
    closure = backward(lambda: model(torch.zeros(7)))
    x = torch.cat([model.a, model.b.flatten()]).detach()
    for t in range(9):
        gradient = model.h * (x - model.c)
        point = x + 0.2 * gradient / gradient.norm() if t % 4 == 0 else x
        x = x - 0.01 * (model.h * (point - model.c))
        sgd.step(closure)
        torch.testing.assert_close(torch.cat([model.a, model.b.flatten()]).detach(), x)


def test_a_step_that_was_begun_and_dropped_is_no_turn() -> None:
    run = Run(MLP, torch.optim.AdamW, methods.sam(0.1, interval=2), False)
    run.step(0)
    next(iter(run.sgd.gradients()))
    run.sgd.zero_grad()
    assert [run.step(t).backwards for t in (1, 2, 3)] == [1, 2, 1]


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_resumed_run_takes_its_turns_where_it_would_have(stop: int) -> None:
    assert_resumes(levels_in_turn(methods.sam(0.1, interval=3), "abb"), stop, 10)
