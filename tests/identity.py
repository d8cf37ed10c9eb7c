"""A method in the setting in which it must be plain training, beside plain training."""

from __future__ import annotations

import torch

from partialsgd import Method, methods
from partialsgd.testing.problems import Problem
from partialsgd.testing.runs import Run, assert_same_bits


def assert_is_plain(problem: Problem, method: Method, steps: int = 5) -> None:
    """To the bit: parameters, buffers, Adam's state and the global generator."""
    runs = [Run(problem, torch.optim.Adam, one, False) for one in (methods.plain(), method)]
    for t in range(steps):
        for run in runs:
            torch.manual_seed(t)
            run.step(t)
    assert_same_bits(*(run.tensors() for run in runs))
