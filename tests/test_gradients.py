"""The oracle: how many passes, in which order, at which point, and what it keeps of them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from partialsgd import Branch, Method, PartialSGD, masks, methods, perturbations
from partialsgd.testing.contracts import AlwaysMeasuring
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
    for meter, expected in ((None, unmeasured), (AlwaysMeasuring(), measured)):
        model, sgd = start(method, meter=meter)
        assert sgd.step(MLP.closure(model, 0)).backwards == expected


def test_the_meter_gets_both_gradients_before_the_mask() -> None:
    seen = {}

    class Meter:
        def due(self, context) -> bool:
            return True

        def measure(self, context, at_x, at_perturbed):
            seen.update(x={n: g.clone() for n, g in at_x.items()}, p={n: g.clone() for n, g in at_perturbed.items()})
            return context.mask

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
