"""GradScaler on the CPU, enabled, and made to overflow."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from partialsgd import Branch, Method, PartialSGD, methods
from tests.contracts import METHODS
from tests.training import MLP, bits, by_gradients, same


def start(method: Method | str, *, enabled: bool = True, **options):
    model = MLP.model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3, enabled=enabled)
    optimizers = [
        torch.optim.AdamW(model[0].parameters(), 0.01),
        torch.optim.SGD([*model[2].parameters(), *model[4].parameters()], 0.1, momentum=0.9),
    ]
    method = METHODS[method] if isinstance(method, str) else method
    return model, scaler, PartialSGD(model, optimizers, method, scaler=scaler, **options)


def closure(model: nn.Module, scaler: torch.amp.GradScaler, t: int, overflow: bool = False):
    def run() -> torch.Tensor:
        loss = MLP.evaluate(model, t)
        scaler.scale(loss).backward()
        if overflow:
            model[4].bias.grad[0] = math.inf
        return loss

    return run


@pytest.mark.parametrize("name", METHODS)
def test_scaled_training_is_unscaled_training(name: str) -> None:
    """The scale is a power of two, so unscaling is exact and the runs agree to the bit."""
    model, scaler, sgd = start(name, clip_norm=0.5)
    twin, _, other = start(name, clip_norm=0.5, enabled=False)
    for t in range(5):
        assert not sgd.step(closure(model, scaler, t)).skipped
        other.step(MLP.closure(twin, t))
    assert same(model, twin)
    assert scaler.get_scale() == 2048.0, "the scaler was updated once a step, not once a pass"


@pytest.mark.parametrize("name", ["plain", "dropout", "top_k", "sam", "extragradient"])
def test_one_overflow_skips_all_optimizers_and_backs_off(name: str) -> None:
    model, scaler, sgd = start(name)
    sgd.step(closure(model, scaler, 0))
    before = bits(model)
    step = sgd.step(closure(model, scaler, 1, overflow=True))
    assert step.skipped and step.backwards == 1, "after an overflow at x_t the second pass is not run"
    assert same(model, before)
    assert sgd.t == 1 and scaler.get_scale() == 512.0
    assert all(p.grad is None for p in model.parameters())
    assert not sgd.step(closure(model, scaler, 2)).skipped and sgd.t == 2


def test_an_overflow_at_the_perturbed_point_skips_too() -> None:
    model, scaler, sgd = start(methods.sam())
    calls = iter([False, True])
    before = bits(model)
    step = sgd.step(lambda: closure(model, scaler, 0, overflow=next(calls))())
    assert step.skipped and step.backwards == 2 and scaler.get_scale() == 512.0
    assert same(model, before)


@pytest.mark.parametrize("method", [methods.plain(), methods.sam()], ids=["plain", "sam"])
def test_twenty_overflows_in_a_row_raise_and_raise_is_obeyed(method: Method) -> None:
    model, scaler, sgd = start(method)
    with pytest.raises(FloatingPointError, match="20 steps in a row"):
        for _ in range(20):
            sgd.step(closure(model, scaler, 0, overflow=True))
    model, scaler, sgd = start(method, nonfinite="raise")
    with pytest.raises(FloatingPointError, match=r"'4\.bias'"):
        sgd.step(closure(model, scaler, 0, overflow=True))
    assert scaler.get_scale() == 512.0
    assert not sgd.step(closure(model, scaler, 0)).skipped, "the scaler is ready for the next step"


def test_micro_batches_accumulate_under_a_scaler() -> None:
    model, scaler, sgd = start(methods.dropout(0.7))
    twin, other_scaler, other = start(methods.dropout(0.7))
    by_gradients(sgd, *(closure(model, scaler, k) for k in (0, 1, 2)))
    other.step(lambda: sum(closure(twin, other_scaler, k)() for k in (0, 1, 2)))
    torch.testing.assert_close(bits(model), bits(twin))
    before = bits(model)
    step = by_gradients(sgd, *(closure(model, scaler, k, overflow=k == 1) for k in (0, 1, 2)))
    assert step.skipped and same(model, before)


def test_a_dropped_overflow_does_not_decide_the_next_step() -> None:
    model, scaler, sgd = start(methods.plain())
    for g in sgd.gradients():
        with g:
            closure(model, scaler, 0, overflow=True)()
    sgd.zero_grad()
    assert not sgd.step(closure(model, scaler, 0)).skipped and scaler.get_scale() == 1024.0


def test_a_disabled_scaler_is_no_scaler() -> None:
    model = MLP.model()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), scaler=scaler)
    with pytest.raises(FloatingPointError):
        sgd.step(lambda: MLP.closure(model, 0)() * math.nan)


def test_a_scaler_hidden_in_the_optimizer_must_be_handed_over(accelerator) -> None:
    from accelerate.optimizer import AcceleratedOptimizer

    model = MLP.model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    wrapped = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), 0.1), scaler=scaler)
    with pytest.raises(ValueError, match=r"scaler=accelerator\.scaler"):
        PartialSGD(model, wrapped)
    sgd = PartialSGD(model, wrapped, scaler=scaler)
    sgd.step(closure(model, scaler, 0))
    raw = MLP.model()
    PartialSGD(raw, torch.optim.SGD(raw.parameters(), 0.1)).step(MLP.closure(raw, 0))
    assert same(model, raw)


def test_an_overflow_in_any_branch_skips() -> None:
    method = Method(branches=lambda c: [Branch(level="full"), Branch(level="core")])
    for bad in (0, 1):
        model, scaler, sgd = start(method)
        calls = iter([k == bad for k in range(2)])
        before = bits(model)
        step = sgd.step(lambda m=model, s=scaler, c=calls: closure(m, s, 0, overflow=next(c))())
        assert step.skipped and scaler.get_scale() == 512.0
        assert same(model, before)
