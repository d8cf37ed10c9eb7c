"""What a step says of itself."""

from __future__ import annotations

import pytest
import torch

import partialsgd as ps
from partialsgd import Branch, Context, Method, PartialSGD, masks
from partialsgd.engine.step import begin
from partialsgd.testing.problems import PROBLEMS

MLP = next(p for p in PROBLEMS if p.name == "mlp")


def test_weights_of_a_sum_and_of_a_mean() -> None:
    branches = [Branch(weight=3.0), Branch(weight=1.0)]
    for combine, expected in (("sum", [3.0, 1.0]), ("mean", [0.75, 0.25])):
        sgd = PartialSGD(model := MLP.model(), torch.optim.SGD(model.parameters(), 0.1))
        method = Method(branches=lambda c: branches, combine=combine)
        pending = begin(method, Context(0, 0, sgd.parameters, {}), {}, sgd.zero_grad)
        assert [pending.weight(b) for b in branches] == expected


def test_a_step_is_numbered_by_the_iteration_it_made_and_has_the_union_of_masks() -> None:
    model = MLP.model()

    def branches(context: Context) -> list[Branch]:
        return [Branch(lambda c, k=k: masks.only(c.parameters, [k]), level=k) for k in ("0", "4")]

    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), Method(branches=branches))
    for t in range(2):
        step = sgd.step(MLP.closure(model, t))
        assert step.t == t and step.level == "0" and step.backwards == 2
        assert step.mask.count() == (masks.only(model, ["0"]) | masks.only(model, ["4"])).count()
        assert [level for level, _ in step.losses] == ["0", "4"]
        assert not step.loss.requires_grad


def test_a_loop_that_gives_no_loss_gets_none() -> None:
    model = MLP.model()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1))
    with sgd.gradient():
        MLP.closure(model, 0)()
    assert sgd.update().loss is None


@pytest.mark.parametrize(
    ("method", "passes"), [(ps.methods.plain(), 1), (ps.methods.sam(), 2), (ps.methods.extragradient(past=True), 1)]
)
@pytest.mark.parametrize("meter", [None, ps.CriteriaMeter(every=1, alerts=None)])
def test_a_step_tells_the_passes_of_its_method_from_those_that_measured(
    method: ps.Method, passes: int, meter: ps.CriteriaMeter | None
) -> None:
    model, x = torch.nn.Linear(3, 1), torch.ones(2, 3)
    sgd = ps.PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method, meter=meter)

    def closure() -> torch.Tensor:
        loss = model(x).square().sum()
        loss.backward()
        return loss

    sgd.step(closure)
    step = sgd.step(closure)
    assert step.passes == (None,) * passes and step.backwards >= passes
