"""Latency."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from partialsgd.lab.training.recipe_tools import latency


class Slow(nn.Module):
    """The first calls are slower, and one later call is."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.modes = 0, set[tuple[bool, bool]]()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.modes.add((self.training, torch.is_inference_mode_enabled()))
        time.sleep(0.1 if self.calls in (1, 2, 7) else 0.002)
        return x


def test_it_is_the_median_of_calls_in_evaluation_and_the_mode_stays() -> None:
    network = Slow().train()
    found = latency(network, torch.zeros(1))
    assert 0.002 <= found < 0.05
    assert network.modes == {(False, True)} and network.training
