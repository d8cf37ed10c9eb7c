"""Calls that would train something else than the user thinks raise, before anything has moved."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import partialsgd as ps
from partialsgd import Branch, Context, Mask, Method, PartialSGD, masks, methods
from tests.training import LR, MLP, bits, same, start

DIRECT = r"step\(\) was called directly.*replace optimizer\.step\(\).*by sgd\.update\(\)"


@pytest.mark.parametrize("by_scaler", [False, True])
@pytest.mark.parametrize("takes_gradients", [False, True])
def test_a_direct_step_of_the_optimizer_is_refused(by_scaler: bool, takes_gradients: bool) -> None:
    model = MLP.model()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    sgd, scaler, before = PartialSGD(model, optimizer), torch.amp.GradScaler("cpu"), bits(model)
    if takes_gradients:
        for g in sgd.gradients():
            with g:
                MLP.closure(model, 0)()
    else:
        MLP.closure(model, 0)()
    with pytest.raises(RuntimeError, match=DIRECT):
        if by_scaler:
            scaler.scale(torch.zeros(()))
            scaler.step(optimizer)
        else:
            optimizer.step()
    assert same(model, before) and sgd.t == 0
    if takes_gradients:
        assert sgd.update().t == 0 and not same(model, before)


def test_the_optimizer_is_free_again_when_partial_sgd_is_gone() -> None:
    model = MLP.model()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    gc.disable()  # it must not need a collection
    try:
        sgd = PartialSGD(model, optimizer)
        sgd.step(MLP.closure(model, 0))
        del sgd
        optimizer.step()
    finally:
        gc.enable()
    first, second = (PartialSGD(model, optimizer) for _ in range(2))  # two that share an optimizer
    assert first.step(MLP.closure(model, 0)).t == second.step(MLP.closure(model, 0)).t == 0


def test_direct_steps_may_be_allowed_for_a_while() -> None:
    """torch's distributed checkpoints step an optimizer that has no state yet."""
    model, sgd = start()
    optimizer = sgd._update.optimizers[0]
    with sgd.direct_steps():
        get_optimizer_state_dict(model, optimizer)
    with pytest.raises(RuntimeError, match=DIRECT):
        optimizer.step()
    assert sgd.step(MLP.closure(model, 0)).t == 0


def test_a_scaler_updated_twice_raises_once_and_steps_are_counted() -> None:
    model, scaler = MLP.model(), torch.amp.GradScaler("cpu")
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), LR), scaler=scaler)

    def closure():
        loss = MLP.evaluate(model, 0)
        scaler.scale(loss).backward()
        return loss

    for g in sgd.gradients():
        with g:
            closure()
    scaler.update()  # sgd.update() does it
    with pytest.raises(AssertionError, match="No inf checks"):
        sgd.update()
    assert sgd.t == 1 and [sgd.step(closure).t for _ in range(2)] == [1, 2] and sgd.t == 3


def replace_parameter(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def replace_module(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model[2] = nn.Linear(model[2].in_features, model[2].out_features)


def add_parameter(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model[0].register_parameter("extra", nn.Parameter(torch.zeros(1)))


def add_parameter_to_a_module_without(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model[1].register_parameter("slope", nn.Parameter(torch.zeros(1)))


def load_by_assignment(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def replace_in_the_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"] = [nn.Parameter(p.detach().clone()) for p in model.parameters()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace_parameter, r"parameter '0\.weight' was replaced, after PartialSGD was built"),
        (replace_module, r"parameter '2\.weight' was replaced"),
        (add_parameter, r"parameter '0\.extra' was added"),
        (add_parameter_to_a_module_without, r"parameter '1\.slope' was added"),
        (load_by_assignment, r"without assign=True"),
        (replace_in_the_optimizer, r"the optimizer holds a parameter of shape .* that is not the model's"),
    ],
)
def test_parameters_that_were_replaced_are_noticed(change, message: str) -> None:
    model, sgd = start()
    sgd.step(MLP.closure(model, 0))
    change(model, sgd._update.optimizers[0])
    before = bits(model)
    for way in (lambda: sgd.step(MLP.closure(model, 1)), sgd.gradients):
        with pytest.raises((RuntimeError, ValueError), match=message):
            way()
    assert same(model, before) and sgd.t == 1


def test_loading_weights_in_place_moving_and_freezing_are_no_replacements() -> None:
    model, sgd = start()
    model.load_state_dict(model.state_dict())
    model.double().float()
    model[0].requires_grad_(False)
    model[1] = nn.Tanh()
    assert sgd.step(MLP.closure(model, 0)).t == 0


def test_a_mask_with_missing_names_is_refused_and_says_how_to_fill_it() -> None:
    model, sgd = start()
    for entries in ({"0.weight": True}, {**dict.fromkeys(sgd.parameters, True), "3.weight": True}):
        with pytest.raises(ValueError, match=r"one entry for each parameter.*from_tensors\(model, entries, rest=False"):
            Mask(sgd.parameters, entries)
    filled = masks.from_tensors(model, {"0.weight": True})
    assert [name for name, entry in filled.items() if entry] == ["0.weight"]


@pytest.mark.parametrize("seed", [np.int64(7), np.uint8(7), True + 6])
def test_a_seed_of_another_integer_type_draws_the_same_masks(seed) -> None:
    (a, sgd), (b, other) = start(methods.dropout(0.5), seed=7), start(methods.dropout(0.5), seed=seed)
    for run, model in ((sgd, a), (other, b)):
        run.step(MLP.closure(model, 0))
    assert same(a, b) and type(other.state_dict()["seed"]) is int


def test_a_seed_that_is_no_integer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"seed must be an integer, got 0\.5"):
        start(seed=0.5)


def test_two_iterators_of_gradients_cannot_be_interleaved() -> None:
    model, sgd = start()
    expected, once = start()
    first = sgd.gradients()
    second = sgd.gradients()
    with pytest.raises(RuntimeError, match=r"this step was dropped: another one was begun"):
        next(first)
    for g in second:
        with g:
            MLP.closure(model, 0)()
    first.close()  # drops nothing of the second
    once.step(MLP.closure(expected, 0))
    assert sgd.update().t == 0 and same(model, expected)


def test_a_pass_whose_loop_is_gone_cannot_be_entered() -> None:
    model, sgd = start(methods.sam())
    g = next(sgd.gradients())
    with pytest.raises(RuntimeError, match=r"begin again with sgd\.gradients"), g:
        pass
    for g in sgd.gradients():
        with g:
            MLP.closure(model, 0)()
        break  # SAM needs a second gradient
    with pytest.raises(RuntimeError, match="run every pass"):
        sgd.update()


def agree(gradients: list[ps.vectors.Vector], parameters) -> Mask:
    a, b = gradients
    return masks.from_tensors(parameters, {name: a[name] * b[name] > 0 for name in a})


def test_a_mask_may_compare_the_gradients_of_micro_batches() -> None:
    """Only coordinates move where two halves of the batch agree in sign."""
    model, sgd = start(Method(mask=lambda c: agree(c.gradients, c.parameters)))
    twin, before = MLP.model(), bits(model)
    halves = []
    for k in (0, 1):
        twin.zero_grad()
        MLP.closure(twin, k)()
        halves.append({name: p.grad.clone() for name, p in twin.named_parameters()})
    for g in sgd.gradients():
        for k in (0, 1):
            with g:
                MLP.closure(model, k)()
    step = sgd.update()
    inside = agree(halves, sgd.parameters)
    assert 0 < inside.count() < sum(p.numel() for p in model.parameters())
    for name, p in model.named_parameters():
        assert torch.equal(torch.as_tensor(step.mask[name]).expand(p.shape), inside[name])
        moved = before[name] - LR * (halves[0][name] + halves[1][name])
        torch.testing.assert_close(p, torch.where(inside[name], moved, before[name]))
        assert torch.equal(p[~inside[name]], before[name][~inside[name]])


def test_a_mask_may_compare_the_gradients_of_branches() -> None:
    """The rule `mask` of a method with branches is asked last, and narrows the union of their masks."""
    seen = []

    def mask(context: Context) -> Mask:
        seen.append([dict(g) for g in context.gradients])
        assert context.mask.is_everything
        return agree(context.gradients, context.parameters)

    method = Method(mask, branches=lambda c: [Branch(level="first"), Branch(level="second", weight=0.5)])
    model, sgd = start(method)
    before = bits(model)
    step = sgd.step(lambda g: MLP.closure(model, int(g.level == "second"))())
    (a, b), inside = seen[0], agree(seen[0], sgd.parameters)
    for name, p in model.named_parameters():
        moved = before[name] - LR * (a[name] + 0.5 * b[name])
        torch.testing.assert_close(p, torch.where(inside[name], moved, before[name]))
        assert torch.equal(p[~inside[name]], before[name][~inside[name]])
    assert step.mask.count() == inside.count()


def test_gradients_one_by_one_are_unscaled_too() -> None:
    seen: list[float] = []

    def mask(context: Context) -> Mask:
        seen.extend(g.norm() for g in context.gradients)
        return masks.everything(context.parameters)

    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        model = MLP.model()
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), LR), Method(mask), scaler=scaler)
        for g in sgd.gradients():
            for k in (0, 1):
                with g:
                    loss = MLP.evaluate(model, k)
                    torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
        sgd.update()
    assert seen[:2] == pytest.approx(seen[2:], rel=1e-5)
