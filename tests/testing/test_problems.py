"""The problems are what they say."""

from __future__ import annotations

import pytest
import torch

from partialsgd.testing.problems import PROBLEMS, Problem, Quadratic


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_models_and_batches_are_functions_of_their_seeds(problem: Problem) -> None:
    state = torch.get_rng_state()
    a, b, other = problem.model(), problem.model(), problem.model(seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    if problem.name != "quadratic":
        assert not all(torch.equal(p, q) for p, q in zip(a.parameters(), other.parameters(), strict=True))
    torch.manual_seed(0)
    first = problem.evaluate(a, 3)
    torch.manual_seed(0)
    assert torch.equal(first, problem.evaluate(b, 3)) and not torch.equal(first, problem.evaluate(b, 4))
    before = torch.get_rng_state()
    problem.evaluate(a, 0)
    assert problem.is_random == (not torch.equal(before, torch.get_rng_state()))


def test_the_quadratic_has_the_minimum_and_curvature_that_it_says() -> None:
    model = Quadratic(curvature=10.0)
    with torch.no_grad():
        model.a.copy_(model.c[:3])
        model.b.copy_(model.c[3:].view(2, 2))
    loss = model(torch.zeros(7))
    loss.backward()
    assert float(loss.detach()) == 0.0 and all(float(p.grad.abs().sum()) == 0 for p in model.parameters())
    assert float(model.h.max()) == 10.0


def test_a_layer_is_unused_in_every_other_batch() -> None:
    problem = next(p for p in PROBLEMS if p.name == "unused")
    for t, used in ((0, True), (1, False)):
        model = problem.model()
        problem.closure(model, t)()
        assert (model.detour.weight.grad is not None) == used
