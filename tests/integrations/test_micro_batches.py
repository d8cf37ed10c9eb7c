"""Micro-batches that arrive one by one give the gradient of all of them, also where DDP reduces only with the last."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import partialsgd as ps
from partialsgd.integrations.micro_batches import MicroBatches
from tests.processes import on_ranks, run_on

METHODS = {"plain": ps.methods.plain(), "dropout": ps.methods.dropout(0.8), "sam": ps.methods.sam(0.1)}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def forward_backward(model: nn.Module, batch: Tensor) -> Tensor:
    loss = model(batch).square().mean()
    loss.backward()
    return loss.detach()


def batches(t: int, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2 * t + rank)
    return [torch.randn(3, 4, generator=generator) for _ in range(3)]


def arriving(ddp: DistributedDataParallel, sgd: ps.PartialSGD, rank: int) -> None:
    micro_batches = MicroBatches(ddp.no_sync)
    for t in range(3):
        for number, batch in enumerate(batches(t, rank)):
            with nullcontext() if number == 2 else ddp.no_sync():
                micro_batches.add(sgd, batch, partial(forward_backward, ddp), last=number == 2)
        sgd.update()


def together(ddp: DistributedDataParallel, sgd: ps.PartialSGD, rank: int) -> None:
    """The definition: one closure runs all micro-batches, and torch adds up their gradients."""
    for t in range(3):

        def closure(t: int = t) -> Tensor:
            with ddp.no_sync():
                for batch in batches(t, rank)[:-1]:
                    forward_backward(ddp, batch)
            return forward_backward(ddp, batches(t, rank)[-1])

        sgd.step(closure)


@on_ranks
def both_ways(rank: int) -> dict[str, Any]:
    trained = {}
    for name, method in METHODS.items():
        for way in (arriving, together):
            model = network()
            ddp = DistributedDataParallel(model)
            way(ddp, ps.PartialSGD(ddp, torch.optim.AdamW(model.parameters(), 0.01), method), rank)
            trained[f"{name} {way.__name__}"] = [p.detach().clone() for p in model.parameters()]
    return trained


def test_two_processes_take_the_steps_of_a_closure(tmp_path: Path) -> None:
    ranks = run_on(both_ways, 2, tmp_path)
    for name in METHODS:
        expected = ranks[0][f"{name} together"]
        for rank in ranks:
            assert all(map(torch.equal, rank[f"{name} arriving"], expected)), name
            assert all(map(torch.equal, rank[f"{name} together"], expected)), name


def test_an_error_in_a_micro_batch_drops_the_step_and_leaves_x_as_it_was() -> None:
    model, micro_batches = network(), MicroBatches()
    sgd = ps.PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), METHODS["dropout"])
    before = [p.detach().clone() for p in model.parameters()]
    first, second, _ = batches(0, 0)
    micro_batches.add(sgd, first, partial(forward_backward, model), last=False)
    assert all(map(torch.equal, model.parameters(), before))  # x, not x̃, between the micro-batches
    with pytest.raises(ZeroDivisionError):
        micro_batches.add(sgd, second, lambda batch: 1 / 0, last=True)
    assert all(map(torch.equal, model.parameters(), before)) and all(p.grad is None for p in model.parameters())
    micro_batches.add(sgd, first, partial(forward_backward, model), last=True)
    assert sgd.update().t == 0
