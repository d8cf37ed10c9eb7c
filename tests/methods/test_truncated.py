"""The memory of dW used again, and a truncated backward among other people's code."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partialsgd import PartialSGD, methods
from partialsgd._util.bitwise_select import rows_of
from tests.methods.test_meprop import batch, by_hand, closure, network


def test_what_is_added_to_a_gradient_does_not_come_back_in_the_next_step() -> None:
    """The memory of dW is used again: a penalty's rows must be cleared from it."""
    model, twin = network(), network()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), methods.meprop(3, mask=False))

    def penalised(net: nn.Module, t: int):
        def run() -> Tensor:
            loss = closure(net, t)()
            (0.1 * sum(p.square().sum() for p in net.parameters())).backward()
            return loss

        return run

    for t in range(4):
        fresh = methods.meprop(3, mask=False)
        twin.load_state_dict(model.state_dict())
        other = PartialSGD(twin, torch.optim.SGD(twin.parameters(), 0.1), fresh)
        sgd.step(penalised(model, t))
        other.step(penalised(twin, t))
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_it_lives_with_inplace_activations_keyword_calls_and_other_hooks() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.c = nn.Linear(12, 20), nn.Linear(20, 16), nn.Linear(16, 5)
            self.extra = nn.Parameter(torch.randn(20, 12))
            self.a.register_forward_hook(lambda m, i, o: o + 0 * o if not i else o + i[0] @ self.extra.t())

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu_(self.a(x))
            h = torch.relu_(self.b(input=h))
            y: Tensor = self.c(h)
            return y

    net = Net()
    sgd = PartialSGD(net, torch.optim.SGD(net.parameters(), 0.1), methods.meprop(3))
    before = net.extra.detach().clone()
    mask = sgd.step(closure(net, 0)).mask
    assert int(rows_of(mask["a.weight"]).sum()) <= 3 and not torch.equal(net.extra, before)


def test_a_backward_outside_of_a_step_is_whole() -> None:
    model, twin = network(), network()
    methods.meprop(2).bind(model)
    closure(model, 0)()
    closure(twin, 0)()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_micro_batches_shared_layers_and_penalties_add_up() -> None:
    """What is added to a truncated gradient is in the mask too, and memory that is still in use is not used again."""
    model, twin = network(), network()
    method = methods.meprop(3)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 1.0), method)
    kept = []
    for t in range(3):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        twin.load_state_dict(model.state_dict())
        expected = [by_hand(twin, 10 * t + k, 3) for k in range(2)]

        def two(t=t) -> Tensor:
            loss = closure(model, 10 * t)() + closure(model, 10 * t + 1)()
            kept.append((model[0].weight.grad, model[0].weight.grad.clone()))
            return loss

        step = sgd.step(two)
        for name, p in model.named_parameters():
            total = expected[0][name] + expected[1][name]
            torch.testing.assert_close(before[name] - p, total, rtol=1e-4, atol=1e-6)
        assert int(rows_of(step.mask["0.weight"]).sum()) in range(3, 7)
    assert all(torch.equal(held, copied) for held, copied in kept), "a gradient that someone holds was overwritten"

    def penalised() -> Tensor:
        loss = closure(model, 99)()
        penalty = model[0].weight.square().sum()
        penalty.backward()
        return loss + penalty

    assert sgd.step(penalised).mask["0.weight"] is True


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo's own doing
def test_autocast_and_compiled_models() -> None:
    torch.compiler.reset()
    model, compiled = network(), network()
    ours = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), methods.meprop(3))
    method = methods.meprop(3)
    wrapped = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    other = PartialSGD(wrapped, torch.optim.SGD(compiled.parameters(), 0.1), method)
    for t in range(3):
        ours.step(closure(model, t))
        other.step(closure(wrapped, t))
    for a, b in zip(model.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    low = network()
    sgd = PartialSGD(low, torch.optim.SGD(low.parameters(), 1.0), methods.meprop(3))
    exact = by_hand(copy.deepcopy(low), 0, 3)
    before = low[6].weight.detach().clone()

    def run() -> Tensor:
        x, y = batch(0)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(low(x), y)
        loss.backward()
        return loss

    step = sgd.step(run)
    assert int(rows_of(step.mask["0.weight"]).sum()) == 3
    torch.testing.assert_close(before - low[6].weight, exact["6.weight"], rtol=0.1, atol=0.02)
