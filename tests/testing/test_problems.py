"""The problems are what they say."""

from __future__ import annotations

import pytest
import torch

from partialsgd.testing.problems import PROBLEMS, Problem


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
