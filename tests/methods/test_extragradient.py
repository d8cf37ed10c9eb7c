"""Downhill, by eta, along this step's gradient or the last one's."""

from __future__ import annotations

import pytest
import torch

from partialsgd import methods
from partialsgd.testing.problems import PROBLEMS, Quadratic
from partialsgd.testing.runs import Run, assert_same_bits
from tests.methods.training import MLP, sgd_of, values

LAWS = {"": methods.extragradient(0.02), "past": methods.extragradient(0.02, past=True)}
IDENTITY = [methods.extragradient(0.0), methods.extragradient(0.0, past=True)]
REFUSED_SETTINGS = [({"eta": -1}, "eta must not be negative, got -1")]


def points(method) -> tuple[list[torch.Tensor], Quadratic]:
    model = Quadratic()
    sgd = sgd_of(model, method, 0.01)
    seen = []

    def closure():
        seen.append(torch.cat([model.a, model.b.flatten()]).detach())
        loss = model(torch.zeros(7))
        loss.backward()
        return loss

    sgd.step(closure)
    return seen, model


def test_the_second_gradient_is_taken_downhill() -> None:
    seen, model = points(methods.extragradient(0.03))
    gradient = model.h * (seen[0] - model.c)
    torch.testing.assert_close(seen[1], seen[0] - 0.03 * gradient)
    value = lambda x: float((0.5 * model.h * (x - model.c) ** 2).sum())  # noqa: E731  # shorter than a def
    assert value(seen[1]) < value(seen[0]), "the paper's printed sign would go uphill (E5)"


@pytest.mark.parametrize("problem", [PROBLEMS[0], MLP, PROBLEMS[5]], ids=lambda problem: problem.name)
def test_from_the_past_is_popovs_loop_with_one_backward_a_step(problem) -> None:
    """y = x − η g_old, g = ∇f(y), x ← x − γ g; a layer that the last step did not use has no old gradient."""
    run = Run(problem, lambda p: torch.optim.SGD(p, 0.05), methods.extragradient(0.03, past=True), False)
    by_hand = problem.model()
    x = values(by_hand)
    past: dict[str, torch.Tensor] = {}
    for t in range(8):
        assert run.step(t).backwards == 1
        with torch.no_grad():
            for name, p in by_hand.named_parameters():
                p.copy_(x[name] - 0.03 * past[name] if name in past else x[name])
        leaves = list(by_hand.parameters())
        found = torch.autograd.grad(problem.evaluate(by_hand, t), leaves, allow_unused=True)
        past = {name: g for name, g in zip(x, found, strict=True) if g is not None}
        x = {name: old - 0.05 * past[name] if name in past else old for name, old in x.items()}
        for name, p in run.model.named_parameters():
            torch.testing.assert_close(p.detach(), x[name])
    kept = {name.removeprefix("past..") for name in run.sgd.state_dict()["memory"]}
    assert kept == set(past) and (problem.name != "unused" or kept < set(x))


def test_the_first_step_from_the_past_is_plain_and_the_second_is_not() -> None:
    runs = [
        Run(MLP, torch.optim.AdamW, method, False)
        for method in (methods.extragradient(0.5, past=True), methods.plain())
    ]
    for t in range(2):
        [run.step(t) for run in runs]
        same = all(torch.equal(p, q) for p, q in zip(*(run.model.parameters() for run in runs), strict=True))
        assert same == (t == 0)


def test_the_past_is_the_gradient_before_it_was_clipped() -> None:
    run = Run(
        PROBLEMS[0],
        lambda p: torch.optim.SGD(p, 0.05),
        methods.extragradient(0.03, past=True),
        False,
        options={"clip_norm": 0.1},
    )
    by_hand = PROBLEMS[0].model()
    gradients = torch.autograd.grad(PROBLEMS[0].evaluate(by_hand, 0), list(by_hand.parameters()))
    run.step(0)
    assert_same_bits(run.sgd.memory, dict(zip(("past..a", "past..b"), gradients, strict=True)))
