"""Pairs of gradients: their distance, and that a look leaves nothing behind. What they measure: tests/meters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from partialsgd import Branch, CriteriaMeter, Method, PartialSGD, Width, masks, methods, nest
from partialsgd.engine.measurement import Pair, outside
from partialsgd.method import GradientRequest
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector
from tests.families import family


def test_what_a_structure_leaves_out_is_x_outside_the_mask() -> None:
    model = nn.ParameterDict({"a": nn.Parameter(torch.tensor([3.0, 4.0])), "b": nn.Parameter(torch.tensor([12.0]))})
    used = Vector({name: torch.zeros_like(p) for name, p in model.named_parameters()})
    core = masks.only(model, ["a"])
    part = masks.from_tensors(Parameters(model), {"a": torch.tensor([True, False])})
    assert outside(core, used) == 12 and outside(part, used) == math.hypot(4, 12)
    assert outside(core, Vector({"a": used["a"]})) == 0, "what the pass at x did not use was not taken away"
    assert Pair(moved=5.0, structural=True).distance(core, used) == 13 and Pair(moved=5.0).distance(core, used) == 5


def test_a_look_leaves_buffers_noise_and_gradients_as_they_were() -> None:
    """Two runs, of which one looks at three pairs at each step; also at such that are refused in the end."""
    final = []
    for looking in (False, True):
        nested = family()

        class Curious:
            def looks(self, context, trained, nested=nested):
                level = methods.only("core").bind(nested).branches_at(context)[0]
                return [
                    GradientRequest(trained),
                    GradientRequest(level),
                    GradientRequest(Branch(lambda c: masks.nothing(c.parameters))),
                ]

            def measure(self, sight):
                torch.rand(7)
                return sight.moved

        sgd = PartialSGD(
            nested,
            torch.optim.AdamW(nested.parameters(), 0.01),
            methods.alternating(),
            meter=Curious() if looking else None,
        )
        torch.manual_seed(3)
        for t in range(4):
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(t))

            def closure(x=x, nested=nested):
                loss = nested(x).square().mean()
                loss.backward()
                return loss

            step = sgd.step(closure)
            assert len(step.measurements) == 3 * looking
        final.append([*nested.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*final, strict=True))


def test_losses_of_ones_own_do_not_touch_the_trained_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    twin = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    twin.load_state_dict(model.state_dict())
    x, other = torch.randn(4, 6), torch.randn(4, 6)
    meter = CriteriaMeter(1, batches=[other], loss=lambda b: model(b).square().mean())
    for one, measured in ((model, meter), (twin, None)):
        sgd = PartialSGD(one, torch.optim.SGD(one.parameters(), 0.1), methods.sam(0.1), meter=measured)

        def closure(one=one):
            loss = one(x).square().mean()
            loss.backward()
            return loss

        assert sgd.step(closure).backwards == (4 if measured else 2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_rule_that_is_probed_remembers_nothing() -> None:
    nested = nest(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), Width(0.5))

    def remembering(context):
        assert not context.memory, "neither its own, nor what the trained method remembers"
        context.memory["been"] = 1
        return masks.everything(context.parameters)

    def own(context):
        context.memory["own"] = context.t
        return masks.everything(context.parameters)

    sgd = PartialSGD(
        nested,
        torch.optim.SGD(nested.parameters(), 0.1),
        Method(mask=own, name="own"),
        meter=CriteriaMeter(1, Method(mask=remembering, name="remembering")),
    )

    def closure():
        loss = nested(torch.ones(2, 6)).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        sgd.step(closure)
    assert sgd.memory == {"own": 1} and not any("been" in key for key in sgd.measured["meter"])


def test_a_pass_that_is_left_out_stops_the_step() -> None:
    model = nn.Linear(2, 1)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), methods.dropout(0.5), meter=CriteriaMeter(1))
    passes = sgd.gradients()
    next(passes)
    with pytest.raises(RuntimeError, match="a gradient was left out"):
        next(passes)


def test_a_step_that_a_guard_refuses_is_measured_once_as_what_was_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    never = methods.guarded(methods.dropout(0.5), by=lambda found: 9.0, bound=1.0, every=1)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), never, meter=CriteriaMeter(2))

    def closure():
        loss = model(torch.ones(2, 6)).square().mean()
        loss.backward()
        return loss

    found = [sgd.step(closure) for _ in range(5)]
    assert [len(step.measurements) for step in found] == [1, 0, 1, 0, 1]
    assert all(step.mask.is_everything for step in found) and found[0].criteria.c_norm > 1
    assert [step.backwards for step in found] == [3] * 5, "at x, at x̃, and the fallback's; measuring costs no more"
