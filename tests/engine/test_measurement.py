"""The gradients that meters and guards ask for, which leave no trace. What is measured of them: tests/meters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from partialsgd import (
    Branch,
    Context,
    CriteriaMeter,
    Method,
    PartialSGD,
    Step,
    masks,
    methods,
    perturbations,
)
from partialsgd.engine.measurement import _Pair, squared_norm_outside
from partialsgd.method import GradientPair, GradientRequest, Guard
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector
from tests.functions import backward
from tests.training import MLP, family, same, start


def test_what_a_structure_leaves_out_is_x_outside_the_mask() -> None:
    model = nn.ParameterDict({"a": nn.Parameter(torch.tensor([3.0, 4.0])), "b": nn.Parameter(torch.tensor([12.0]))})
    used = Vector({name: torch.zeros_like(p) for name, p in model.named_parameters()})
    core = masks.only(model, ["a"])
    part = masks.from_tensors(Parameters(model), {"a": torch.tensor([True, False])})
    assert squared_norm_outside(core, used) == 144 and squared_norm_outside(part, used) == 160
    assert squared_norm_outside(core, Vector({"a": used["a"]})) == 0, (
        "what the pass at x did not use was not taken away"
    )
    assert _Pair(moved=25.0, structural=True).perturbation_norm(core, used) == 13
    assert _Pair(moved=25.0).perturbation_norm(core, used) == 5


def test_a_measurement_leaves_buffers_noise_and_gradients_as_they_were() -> None:
    """Two runs are compared, one of which measures three pairs at each step."""
    final = []
    for measures in (False, True):
        nested = family()

        class Curious:
            def requests(self, context, trained, nested=nested):
                level = methods.only("core").bind(nested).branches_at(context)[0]
                return [
                    GradientRequest(trained),
                    GradientRequest(level),
                    GradientRequest(Branch(lambda c: masks.nothing(c.parameters))),
                ]

            def measure(self, pair):
                torch.rand(7)
                return pair.perturbation_norm

        sgd = PartialSGD(
            nested,
            torch.optim.AdamW(nested.parameters(), 0.01),
            methods.alternating(),
            meter=Curious() if measures else None,
        )
        torch.manual_seed(3)
        for t in range(4):
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(t))
            step = sgd.step(lambda x=x, nested=nested: backward(nested(x).square().mean()))
            assert len(step.measurements) == 3 * measures
        final.append([*nested.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(a, b) for a, b in zip(*final, strict=True))


def test_losses_of_ones_own_do_not_touch_the_trained_gradient() -> None:
    model, twin = MLP.model(), MLP.model()
    meter = CriteriaMeter(1, batches=[7], loss=lambda t: MLP.evaluate(model, t))
    for one, measured in ((model, meter), (twin, None)):
        sgd = PartialSGD(one, torch.optim.SGD(one.parameters(), 0.1), methods.sam(0.1), meter=measured)
        assert sgd.step(MLP.closure(one, 0)).backwards == (4 if measured else 2)
    assert same(model, twin)


def test_a_rule_that_is_probed_remembers_nothing() -> None:
    def remembering(context):
        assert not context.memory, "neither its own, nor what the trained method remembers"
        context.memory["been"] = 1
        return masks.everything(context.parameters)

    def own(context):
        context.memory["own"] = context.t
        return masks.everything(context.parameters)

    probe = Method(mask=remembering, name="remembering")
    model, sgd = start(Method(mask=own, name="own"), meter=CriteriaMeter(1, probe))
    for t in range(2):
        sgd.step(MLP.closure(model, t))
    assert sgd.memory == {"own": 1} and not any("been" in key for key in sgd.measured["meter"])


def test_a_pass_that_is_left_out_stops_the_step() -> None:
    passes = start(methods.dropout(0.5), meter=CriteriaMeter(1))[1].gradients()
    next(passes)
    with pytest.raises(RuntimeError, match="a gradient was left out"):
        next(passes)


def test_a_step_that_a_guard_refuses_is_measured_once_as_what_was_refused() -> None:
    never = methods.guarded(methods.dropout(0.5), by=lambda found: 9.0, bound=1.0, every=1)
    model, sgd = start(never, meter=CriteriaMeter(2))
    found = [sgd.step(MLP.closure(model, 0)) for _ in range(5)]
    assert [len(step.measurements) for step in found] == [1, 0, 1, 0, 1]
    assert all(step.mask.is_everything for step in found) and found[0].criteria.c_norm > 1
    assert [step.backwards for step in found] == [3] * 5, "at x, at x̃, and the fallback's; measuring costs no more"


def test_losses_of_a_request_are_averaged_at_the_perturbed_point() -> None:
    model = nn.ParameterDict({"x": nn.Parameter(torch.tensor([1.0, 2.0])), "unused": nn.Parameter(torch.ones(1))})
    losses = [lambda k=k: (k * model["x"].square()).sum() for k in (1.0, 3.0)]
    step = measured_over(model, losses)
    pair = step.measurements[0]
    assert torch.equal(pair.at_x["x"], torch.tensor([4.0, 8.0])) and "unused" not in pair.at_x, "2 k x, on average"
    assert torch.equal(pair.at_perturbed["x"], torch.tensor([2.0, 4.0])), "the same at x / 2"
    assert step.backwards == 5 and pair.perturbation_norm == pytest.approx(math.sqrt(5) / 2)


@pytest.mark.parametrize("wrong", [lambda x: 1.0, lambda x: x * 2, lambda x: x.detach().sum(), lambda x: None])
def test_what_is_no_loss_is_refused_and_x_is_x_again(wrong) -> None:
    model = nn.ParameterDict({"x": nn.Parameter(torch.tensor([1.0, 2.0]))})
    with pytest.raises(ValueError, match=r"loss\(batch\) must return the loss as one number"):
        measured_over(model, [lambda: wrong(model["x"])])
    assert model["x"].tolist() == [1.0, 2.0] and model["x"].grad is None


def measured_over(model: nn.Module, losses) -> Step:
    class Meter:
        def requests(self, context, trained):
            return [GradientRequest(trained, losses=(losses, losses))]

        def measure(self, pair):
            return pair

    halved = Method(perturb=lambda c: perturbations.function(["x"], lambda ps: ps["x"].mul_(0.5)))
    return PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), halved, meter=Meter()).step(
        lambda: backward(model["x"].sum())
    )


def at(memory: dict, level: str | None = None) -> Context:
    parameters = Parameters(nn.Linear(2, 1))
    return Context(0, 0, parameters, memory, level=level).with_mask(masks.everything(parameters))


def test_a_guard_judges_each_level_at_its_own_steps_and_remembers_the_verdict_in_both_memories() -> None:
    verdicts = iter([True, False])
    guard = Guard(2, lambda pair: next(verdicts), Method())
    memory: dict = {}
    levels = ("full", "core", "full", "core", "full")
    assert [guard.count_and_check_due(at(memory, level)) for level in levels] == [True, True, False, False, True]
    start, now = {}, {}
    pair = GradientPair(GradientRequest(Branch()), at(now, "core"), Vector({}), Vector({}))
    assert not guard.has_refused(at(start, "core"))
    assert guard.judge(at(start, "core"), pair)
    assert all(guard.has_refused(at(memory, "core")) and not guard.has_refused(at(memory)) for memory in (start, now))
    assert not guard.judge(at(start, "core"), pair) and not guard.has_refused(at(now, "core"))
