"""The oracle: how many passes, in which order, at which point, and what it keeps of them."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch

from partialsgd import Branch, CriteriaMeter, Method, PartialSGD, masks, methods, perturbations
from partialsgd.method import GradientRequest
from partialsgd.testing.problems import PROBLEMS

MLP = next(p for p in PROBLEMS if p.name == "mlp")


def start(method: Method, **options):
    model = MLP.model()
    return model, PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method, **options)


@pytest.mark.parametrize(
    ("method", "unmeasured", "measured"),
    [
        (methods.plain(), 1, 1),
        (methods.random_mask(0.5), 1, 1),
        (methods.top_k(0.1), 1, 1),
        (methods.dropout(0.5), 1, 2),
        (methods.sam(), 2, 2),
        (methods.extragradient(), 2, 2),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_measuring_takes_a_pass_only_where_the_gradient_at_x_is_missing(method, unmeasured, measured) -> None:
    for meter, expected in ((None, unmeasured), (CriteriaMeter(1), measured)):
        model, sgd = start(method, meter=meter)
        assert sgd.step(MLP.closure(model, 0)).backwards == expected


def test_the_meter_gets_both_gradients_before_the_mask() -> None:
    seen = {}

    class Meter:
        def looks(self, context, trained):
            return [GradientRequest(trained)]

        def measure(self, sight):
            for key, vector in (("x", sight.at_x), ("p", sight.at_perturbed)):
                seen[key] = {name: g.clone() for name, g in vector.items()}
            return sight.context.mask

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
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


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
    with pytest.raises(ZeroDivisionError), sgd.gradient():
        raise ZeroDivisionError
    assert log == ["in", "out"]


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
