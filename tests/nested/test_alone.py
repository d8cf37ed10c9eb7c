"""A family of one: the network alone, with all that a family can do."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import partialsgd as ps
from partialsgd import export


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


def test_a_family_of_one_is_its_network_trained_saved_and_taken_out(tmp_path: Path) -> None:
    nested, model, x = ps.nest(build(), levels={}), build(), torch.randn(6, 4)
    assert nested.levels == ("full",)
    ours, theirs = (torch.optim.Adam(network.parameters()) for network in (nested, model))
    sgd = ps.PartialSGD(nested, ours, ps.methods.alternating())

    def closure() -> torch.Tensor:
        loss = nested(x).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        assert sgd.step(closure).level == "full"
        theirs.zero_grad()
        model(x).square().sum().backward()
        theirs.step()
    assert torch.equal(nested(x), model(x))
    assert torch.equal(nested.extract("full", example=x)(x), model(x))
    export.save(nested, tmp_path)
    assert torch.equal(export.load(tmp_path, build())(x), model(x))
    assert [row.share for row in nested.profile(x).rows] == [1.0]
    assert "full" in nested.draw() and "full" in nested.summary()
