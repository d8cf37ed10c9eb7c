"""A run sees every tensor that a law speaks of, and a copy of it is compared to the bit."""

from __future__ import annotations

import pytest
import torch

from partialsgd import methods
from partialsgd.testing.problems import PROBLEMS
from partialsgd.testing.runs import Run, assert_same_bits

NORMS = next(p for p in PROBLEMS if p.name == "batchnorm")


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
