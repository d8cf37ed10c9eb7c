"""Optimizers from torch and elsewhere: probed on 64 numbers, verified by their first step, changed while training."""

from __future__ import annotations

import copy

import pytest
import pytorch_optimizer
import torch
from torch import nn, optim

from partialsgd import Method, PartialSGD, masks, methods
from partialsgd.optimizers import capabilities
from partialsgd.optimizers.param_groups import unwrapped
from tests.optimizer_zoo import ALL, COORDINATE_WISE
from tests.training import MLP, bits, same


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(4, 4))]


def why_not(optimizer: optim.Optimizer, probe=capabilities.why_not_coordinate_wise) -> str | None:
    return capabilities.reason(probe, optimizer, optimizer.param_groups[0])


@pytest.mark.parametrize("name", sorted(ALL))
def test_the_probe_tells_coordinate_wise_optimizers_from_coupled_ones(name: str) -> None:
    assert (why_not(ALL[name](parameters())) is None) == (name in COORDINATE_WISE)


@pytest.mark.parametrize("name", sorted(COORDINATE_WISE))
def test_initial_state_is_what_torch_starts_with(name: str) -> None:
    """Seen from outside: a step without movement leaves state at its start, but for Adamax's eps and ASGD's x."""
    optimizer = COORDINATE_WISE[name](parameters())
    (group,) = optimizer.param_groups
    (parameter,) = group["params"]
    group["weight_decay"] = 0.0
    parameter.grad = torch.zeros(4, 4)
    optimizer.step()
    for key, value in capabilities.per_coordinate(optimizer.state[parameter], parameter).items():
        expected = capabilities.initial_state(optimizer, group, key)
        assert torch.allclose(value, torch.full_like(value, expected), atol=2e-8), key


class WantsMore(optim.SGD):
    def __init__(self, params, lr, model) -> None:
        super().__init__(params, lr)


class StartsElsewhere(optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p].setdefault("scale", torch.ones_like(p))
        return super().step(closure)


class Centring(optim.SGD):
    """Couples the columns of a row."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.grad -= p.grad.mean(-1, keepdim=True)
        return super().step(closure)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: optim.Adam(p, lr=torch.tensor(0.1)), None),
        (lambda p: WantsMore(p, 0.1, None), "throw-away instance"),
        (lambda p: StartsElsewhere(p, 0.1), "does not start at zero"),
        (lambda p: Centring(p, 0.1), "couples"),
        *((lambda p, n=n: getattr(pytorch_optimizer, n)(p, lr=0.01), None) for n in ("Lion", "Tiger")),
        *(
            (lambda p, n=n: getattr(pytorch_optimizer, n)(p, lr=0.01), "")
            for n in ("ScheduleFreeSGD", "ScheduleFreeAdamW", "MADGRAD", "Ranger", "Lamb", "AggMo", "AdaShift")
        ),
    ],
)
def test_state_that_starts_elsewhere_couples_or_hides_is_refused_for_elements(make, message: str | None) -> None:
    reason = why_not(make(parameters()))
    assert reason is None if message is None else reason and message in reason


def test_probing_touches_neither_the_generator_nor_the_optimizer() -> None:
    optimizer, state = optim.Adam(parameters()), torch.get_rng_state()
    for probe in (capabilities.why_not_coordinate_wise, capabilities.why_not_forgetful):
        why_not(optimizer, probe)
    assert not optimizer.state and torch.equal(state, torch.get_rng_state())


class Decaying(optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.9)
        return super().step(closure)


class Wrapper(Decaying):
    """From neither accelerate nor Lightning: what it does is its own."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        super().__init__(optimizer.param_groups[0]["params"], 0.1)
        self.optimizer = optimizer


@pytest.mark.parametrize(
    ("make", "some"),
    [(lambda p: Decaying(p, 0.1), torch.eye(9, 6, dtype=torch.bool)), (lambda p: Wrapper(optim.SGD(p, 0.1)), True)],
)
def test_the_first_step_that_leaves_a_tensor_out_shows_that_an_optimizer_moves_it(make, some) -> None:
    """At t = 0 and 1 nothing is wholly outside, so nothing can be compared; at t = 2 it is."""
    model = MLP.model()
    entries = [{}, {"0.weight": some}, {"0.weight": True}]
    mask = lambda c: masks.from_tensors(c.parameters, entries[c.t], rest=c.t < 2)  # noqa: E731  # shorter than a def
    optimizer = make(list(model.parameters()))
    assert unwrapped(optimizer) is optimizer
    sgd = PartialSGD(model, optimizer, Method(mask=mask))
    for t in range(2):
        sgd.step(MLP.closure(model, t))
    before = bits(model)
    with pytest.raises(RuntimeError, match=f"{type(optimizer).__name__} changed"):
        sgd.step(MLP.closure(model, 2))
    assert sgd.t == 2 and same(model, before)


def test_a_good_foreign_optimizer_may_decay() -> None:
    model = MLP.model()
    method = Method(mask=lambda c: masks.only(c.parameters, ["0"]) if c.t else masks.everything(c.parameters))
    sgd = PartialSGD(model, pytorch_optimizer.Lion(model.parameters(), 0.01), method, outside="decay")
    sgd.step(MLP.closure(model, 0))
    before = model[2].weight.detach().clone()
    sgd.step(MLP.closure(model, 1))
    assert torch.equal(before, model[2].weight)


def test_a_group_that_is_added_later_is_held_too() -> None:
    model = MLP.model()
    model[0].weight.requires_grad_(False)
    optimizer = optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.1)
    some = torch.zeros(9, 6, dtype=torch.bool)
    some[0] = True
    sgd = PartialSGD(model, optimizer, Method(mask=lambda c: masks.from_tensors(c.parameters, {"0.weight": some})))
    before = model[0].weight.detach().clone()
    sgd.step(MLP.closure(model, 0))
    assert torch.equal(before, model[0].weight), "it is frozen, and needs no optimizer"
    model[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"'0\.weight' first"):
        sgd.step(MLP.closure(model, 1))
    optimizer.add_param_group({"params": [model[0].weight]})
    sgd.step(MLP.closure(model, 1))
    assert torch.equal(before[~some], model[0].weight[~some]) and not torch.equal(before, model[0].weight)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(ValueError, match=r"not the model's"):
        sgd.step(MLP.closure(model, 2))


def test_a_copy_trains_itself() -> None:
    model = MLP.model()
    sgd = PartialSGD(model, optim.AdamW(model.parameters(), 0.01), methods.random_mask(0.5))
    sgd.step(MLP.closure(model, 0))
    other, before = copy.deepcopy(sgd), bits(model)
    other.step(MLP.closure(other.parameters.model, 1))
    assert same(model, before)
    sgd.step(MLP.closure(model, 1))
    assert same(model, other.parameters.model)
