"""The passes of a step: how many, in which order, at which point, and what is kept of them."""

from __future__ import annotations

import gc
import math
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

from partialsgd import Branch, Context, CriteriaMeter, Method, masks, methods, perturbations
from partialsgd.engine.gradients import mask_gradients
from partialsgd.engine.step import StepInProgress
from partialsgd.method import GradientRequest
from partialsgd.parameters import Parameters
from tests.training import MLP, bits, same, start


def test_the_meter_gets_both_gradients_before_the_mask() -> None:
    seen = {}

    class Meter:
        def requests(self, context, trained):
            return [GradientRequest(trained)]

        def measure(self, pair):
            for key, vector in (("x", pair.at_x), ("p", pair.at_perturbed)):
                seen[key] = {name: g.clone() for name, g in vector.items()}
            return pair.context.mask

    model, sgd = start(methods.dropout(0.5), meter=Meter())
    expected = MLP.model()
    MLP.closure(expected, 0)()
    mask = sgd.step(MLP.closure(model, 0)).criteria
    for name, p in expected.named_parameters():
        assert torch.equal(seen["x"][name], p.grad)
    dropped = MLP.model()
    with torch.no_grad():
        for name, p in dropped.named_parameters():
            p.mul_(torch.as_tensor(mask[name]))
    MLP.closure(dropped, 0)()
    for name, p in dropped.named_parameters():
        torch.testing.assert_close(seen["p"][name], p.grad)


def test_the_gradient_at_x_is_let_go_before_the_pass_at_the_perturbed_point() -> None:
    """SAM and extragradient keep one copy of x, not of x and of the gradient."""
    for method in (methods.sam(), methods.extragradient(), methods.sam(1.0, adaptive=True)):
        model, sgd = start(method)
        kept: list[weakref.ref] = []

        def closure(model=model, kept=kept):
            gc.collect()
            assert not any(ref() is not None for ref in kept), "the first gradient is still there"
            loss = MLP.closure(model, 0)()
            kept.extend(weakref.ref(p.grad) for p in model.parameters())
            return loss

        assert sgd.step(closure).backwards == 2


def test_a_mask_by_gradient_with_a_perturbation_takes_two_passes() -> None:
    top = methods.top_k(0.3)
    method = Method(mask=top.mask, perturb=lambda c: perturbations.drop_outside(c.mask))
    model, sgd = start(method)
    points = []

    def closure():
        points.append(int(sum((p == 0).sum() for p in model.parameters())))
        return MLP.closure(model, 0)()

    step = sgd.step(closure)
    total = masks.everything(model).count()
    assert step.backwards == 2 and points[0] == 0 and points[1] == total - step.mask.count()


def test_branches_with_masks_of_their_own_meet_in_one_update() -> None:
    def branches(context):
        return [Branch(lambda c, k=k: masks.only(c.parameters, [k])) for k in ("0", "2")]

    model, sgd = start(Method(branches=branches))
    twin, plain = start(Method(mask=lambda c: masks.only(c.parameters, ["0", "2"])))
    sgd.step(MLP.closure(model, 0))
    plain.step(MLP.closure(twin, 0))
    assert same(model, twin)


def test_only_the_trained_pass_runs_within_and_it_is_left_when_the_closure_raises() -> None:
    log = []

    @contextmanager
    def noted(context):
        log.append("in")
        try:
            yield
        finally:
            log.append("out")

    def closure():
        log.append("pass")
        return MLP.closure(model, 0)()

    model, sgd = start(Method(perturb=methods.sam().perturb, within=noted), meter=CriteriaMeter(1))
    sgd.step(closure)
    assert log == ["pass", "in", "pass", "out"]
    log.clear()
    model, sgd = start(Method(within=noted), meter=CriteriaMeter(1))  # the meter wants the whole gradient at x
    sgd.step(closure)
    assert log == ["pass", "in", "pass", "out"]
    log.clear()
    model, sgd = start(Method(within=noted))
    with pytest.raises(ZeroDivisionError):
        sgd.step(lambda: 1 / 0)
    assert log == ["in", "out"]
    log.clear()
    for g in sgd.gradients():
        for _ in range(2):
            with g:
                closure()
    assert log == ["in", "pass", "out"] * 2, "a context manager that can be entered only once is made anew"


def test_within_may_look_at_a_mask_that_is_known_before_the_pass() -> None:
    seen = []

    def within(context):
        seen.append(context.mask)
        return nullcontext()

    model, sgd = start(Method(mask=lambda c: masks.only(c.parameters, ["0"]), within=within))
    sgd.step(MLP.closure(model, 0))
    assert [m.count() for m in seen] == [63]
    model, sgd = start(Method(mask=methods.top_k(0.5).mask, within=within))
    assert sgd.step(MLP.closure(model, 0)).backwards == 1  # a mask that waits for the pass is not known to it


def test_rules_look_at_the_gradient_of_the_base_and_a_branch_that_stays_there_takes_one_pass() -> None:
    """A branch whose δx is its base alone: top-k of the sub-network's own gradient, by the pass that trains it."""
    entered, norms = [], []

    @contextmanager
    def smaller():
        entered.append(1)
        with torch.no_grad():
            model[0].weight.mul_(0.5)
        yield
        with torch.no_grad():
            model[0].weight.mul_(2)

    base = perturbations.switch(smaller)

    def mask(context):
        norms.append(context.gradient.norm())
        return masks.everything(context.parameters)

    model, sgd = start(Method(branches=lambda c: [Branch(mask, lambda c: base, base=base)]))
    other = MLP.model()
    with torch.no_grad():
        other[0].weight.mul_(0.5)
    MLP.closure(other, 0)()
    assert sgd.step(MLP.closure(model, 0)).backwards == 1 == len(entered)
    expected = float(torch.cat([p.grad.flatten() for p in other.parameters()]).norm())
    assert norms == [pytest.approx(expected, rel=1e-6)]
    meter = CriteriaMeter(1)
    model, sgd = start(Method(branches=lambda c: [Branch(mask, lambda c: base, base=base)]), meter=meter)
    assert sgd.step(MLP.closure(model, 0)).backwards == 2  # the meter's gradient is that at x


def test_last_is_known_before_the_pass_runs() -> None:
    for method, expected in ((methods.plain(), [True]), (methods.top_k(0.1), [True]), (methods.sam(), [False, True])):
        model, sgd = start(method)
        seen = []
        for g in sgd.gradients():
            seen.append(g.last)
            with g:
                MLP.closure(model, 0)()
        assert seen == expected and sgd.update().loss is None, "none was assigned"


def test_keyboard_interrupt_restores_too() -> None:
    model, sgd = start(methods.dropout(0.5))
    before = bits(model)

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sgd.step(interrupted)
    assert same(model, before)


def test_a_step_is_gone_when_it_is_done_and_not_when_memory_is_collected() -> None:
    """A cycle would keep each step's gradient alive for a while: the memory of a second gradient."""
    gc.collect()
    gc.disable()
    try:
        for method in (methods.top_k(0.5), methods.sam(0.1), methods.dropout(0.5), methods.plain()):
            model, sgd = start(method)
            for t in range(2):
                sgd.step(MLP.closure(model, t))
                assert not [o for o in gc.get_objects() if type(o) is StepInProgress], "the step is still there"
    finally:
        gc.enable()


def test_a_step_is_numbered_by_the_iteration_it_made_and_has_the_union_of_masks() -> None:
    def branches(context: Context) -> list[Branch]:
        return [Branch(lambda c, k=k: masks.only(c.parameters, [k]), level=k) for k in ("0", "4")]

    model, sgd = start(Method(branches=branches))
    for t in range(2):
        step = sgd.step(MLP.closure(model, t))
        assert step.t == t and step.level == "0" and step.backwards == 2
        assert step.mask.count() == (masks.only(model, ["0"]) | masks.only(model, ["4"])).count()
        assert [level for level, _ in step.losses] == ["0", "4"]
        assert not step.loss.requires_grad


@pytest.mark.parametrize(
    ("method", "passes"), [(methods.plain(), 1), (methods.sam(), 2), (methods.extragradient(past=True), 1)]
)
@pytest.mark.parametrize("meter", [None, CriteriaMeter(every=1, alerts=None)])
def test_a_step_tells_the_passes_of_its_method_from_those_that_measured(
    method: Method, passes: int, meter: CriteriaMeter | None
) -> None:
    model, sgd = start(method, meter=meter)
    _, step = (sgd.step(MLP.closure(model, 0)) for _ in range(2))
    assert step.passes == (None,) * passes and step.backwards >= passes


def test_masking_leaves_none_outside_and_exact_numbers_inside() -> None:
    model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 3))
    for p in model.parameters():
        p.grad = torch.randn(p.shape)
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    some = torch.rand(20, 30) < 0.5
    model[0].weight.grad[~some] = math.nan  # what is outside must not spoil what is inside
    mask_gradients(Parameters(model), masks.from_tensors(model, {"0.weight": some, "1.bias": True}))
    assert torch.equal(model[0].weight.grad, torch.where(some, before["0.weight"], 0.0))
    assert torch.equal(model[1].bias.grad, before["1.bias"])
    assert model[0].bias.grad is None and model[1].weight.grad is None
