"""Problems are functions of their seeds; a run sees every tensor that a law speaks of, and compares it to the bit."""

from __future__ import annotations

import pytest
import torch

from partialsgd import methods
from partialsgd.testing.problems import PROBLEMS, Problem
from partialsgd.testing.runs import Run, assert_same_bits

NORMS = next(p for p in PROBLEMS if p.name == "batchnorm")


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


def started() -> Run:
    run = Run(NORMS, torch.optim.Adam, methods.dropout(0.5), False)
    run.step(0)
    return run


def test_a_saved_run_goes_on_in_another_and_one_changed_bit_anywhere_is_seen() -> None:
    run, other = started(), started()
    other.load(run.save())
    assert_same_bits(run.tensors(), other.tensors())
    kinds = {name.partition(".")[0] for name in run.tensors()}
    assert kinds == {"model", "optimizer", "rng"} and "model.1.running_mean" in run.tensors()
    for name in run.tensors():
        changed = run.tensors()
        changed[name] = changed[name] + 1
        with pytest.raises(AssertionError, match=f"not the same to the bit: {name}"):
            assert_same_bits(run.tensors(), changed)
