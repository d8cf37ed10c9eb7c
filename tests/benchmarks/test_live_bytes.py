"""The counter of live bytes, on cases small enough to count by hand."""

from __future__ import annotations

import torch
from benchmarks.live_bytes import LiveBytes, peak_of
from torch import nn


def test_a_storage_counts_once_and_until_its_last_view_is_gone() -> None:
    with LiveBytes() as counter:
        a = torch.zeros(1000)
        assert counter.live == 4000
        b = a.view(10, 100)[3:5]
        assert counter.live == 4000
        del a
        assert counter.live == 4000
        del b
    assert (counter.live, counter.peak) == (0, 4000)


def test_existing_storages_do_not_count_and_an_enlarged_output_counts_as_large_as_it_became() -> None:
    old, ones = torch.zeros(1000), torch.ones(1000)
    with LiveBytes() as counter:
        old.add_(1).mul_(2)
        torch.neg(old, out=old)
        view = old.view(-1)
        del old, view
        assert (counter.live, counter.peak) == (0, 0)
        torch.add(ones, ones, out=torch.empty(0))
    assert (counter.live, counter.peak) == (0, 4000)


def test_the_peak_is_the_worst_moment_not_the_sum() -> None:
    def run() -> None:
        for _ in range(5):
            torch.zeros(1000)
        a, b = torch.zeros(500), torch.zeros(1000)
        del a, b

    assert peak_of(run) == 6000
    parameters = list(nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10)).parameters())
    assert peak_of(lambda: [p.detach().clone() for p in parameters]) == sum(4 * p.numel() for p in parameters)


def test_gradients_and_what_backward_needs_are_counted_while_they_are_there() -> None:
    layer = nn.Linear(100, 50, bias=False)
    inputs = torch.zeros(10, 100)

    def step() -> None:
        layer(inputs).sum().backward()
        layer.weight.grad = None

    # At the worst moment: the output 10 x 50, the loss and its gradient, and the weight's gradient 50 x 100.
    # The output's gradient is one number, expanded; the matrix product that reads it needs no copy.
    assert 4 * 50 * 100 < peak_of(step) <= 4 * (50 * 100 + 2 * 10 * 50 + 2)
    weight = nn.Parameter(torch.zeros(1000))
    with LiveBytes() as counter:
        (weight * 2).sum().backward()
        assert counter.live == 4000
        weight.grad = None
        assert counter.live == 0


def test_lists_of_tensors_are_seen() -> None:
    tensors = [torch.zeros(100), torch.zeros(200)]
    with LiveBytes() as counter:
        made = torch._foreach_add(tensors, 1.0)
        assert counter.live == 4 * 300
        torch._foreach_add_(tensors, made)
        del made
    assert (counter.live, counter.peak) == (0, 4 * 300)
