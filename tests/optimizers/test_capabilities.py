"""Optimizers are found out on 64 numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from partialsgd.optimizers import capabilities as probes
from tests.optimizer_zoo import ALL, COORDINATE_WISE


def make(name: str) -> tuple[optim.Optimizer, dict]:
    optimizer = ALL[name]([nn.Parameter(torch.zeros(2, 2))])
    return optimizer, optimizer.param_groups[0]


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_probe_tells_coordinate_wise_optimizers_from_coupled_ones(name: str) -> None:
    assert (probes.why_not_coordinate_wise(*make(name)) is None) == (name in COORDINATE_WISE)


@pytest.mark.parametrize("name", sorted(COORDINATE_WISE))
def test_initial_state_is_what_torch_starts_with(name: str) -> None:
    """Seen from outside: a step without movement leaves state at its start, but for Adamax's eps and ASGD's x."""
    optimizer, group = make(name)
    parameter = group["params"][0]
    group["weight_decay"] = 0.0
    parameter.grad = torch.zeros(2, 2)
    optimizer.step()
    for key, value in probes.per_coordinate(optimizer.state[parameter], parameter).items():
        expected = probes.initial_state(optimizer, group, key)
        assert torch.allclose(value, torch.full_like(value, expected), atol=2e-8), key


def test_a_learning_rate_in_a_tensor_is_understood() -> None:
    optimizer = optim.Adam([nn.Parameter(torch.zeros(2, 2))], lr=torch.tensor(0.1))
    assert probes.why_not_coordinate_wise(optimizer, optimizer.param_groups[0]) is None


class WantsMore(optim.SGD):
    def __init__(self, params, lr, model) -> None:
        super().__init__(params, lr)


class StartsElsewhere(optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("scale", torch.ones_like(p))
        return super().step(closure)


def test_what_cannot_be_found_out_is_said() -> None:
    optimizer = WantsMore([nn.Parameter(torch.zeros(2, 2))], 0.1, None)
    assert "throw-away instance" in probes.why_not_coordinate_wise(optimizer, optimizer.param_groups[0])
    optimizer = StartsElsewhere([nn.Parameter(torch.zeros(2, 2))], 0.1)
    assert "does not start at zero" in probes.why_not_coordinate_wise(optimizer, optimizer.param_groups[0])


def test_probing_touches_neither_the_generator_nor_the_optimizer() -> None:
    optimizer, group = make("Adam")
    state = torch.get_rng_state()
    probes.why_not_coordinate_wise(optimizer, group)
    probes.why_not_forgetful(optimizer, group)
    assert not optimizer.state and torch.equal(state, torch.get_rng_state())


def test_how_wrong_a_cleared_coordinate_would_move() -> None:
    """Why `reset` is refused for part of a tensor: after 1000 steps the first move is too long."""
    for kind, factor in ((optim.Adam, 2.5), (optim.NAdam, 13.0)):
        p = nn.Parameter(torch.zeros(1))
        optimizer = kind([p], lr=0.001)
        for _ in range(1000):
            p.grad = torch.ones(1)
            optimizer.step()
        for key, value in optimizer.state[p].items():
            if key.startswith("exp_avg"):
                value.zero_()
        before = p.detach().clone()
        p.grad = torch.ones(1)
        optimizer.step()
        assert float((before - p).abs().detach()) / 0.001 == pytest.approx(factor, rel=0.1)
