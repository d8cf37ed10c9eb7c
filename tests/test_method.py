"""Rules are asked, and asked again when they need the gradient; an attempt leaves no trace."""

from __future__ import annotations

import pytest
import torch

from partialsgd import Branch, Context, Method, PartialSGD, masks, methods, perturbations
from partialsgd.engine.rules import choose
from partialsgd.method import NeedsGradient, everything, nowhere
from partialsgd.parameters import Parameters
from partialsgd.testing.problems import PROBLEMS
from partialsgd.vectors import Vector

MODEL = PROBLEMS[1].model()
ALL_ONES = masks.everything(MODEL)


def context(gradient: Vector | None = None, **changes) -> Context:
    fields = {"t": 3, "seed": 5, "parameters": Parameters(MODEL), "memory": {}} | changes
    return Context(**fields).with_gradient(gradient)


def a_gradient() -> Vector:
    return Vector({name: torch.ones_like(p) for name, p in Parameters(MODEL).items()})


def test_draws_belong_to_seed_t_branch_and_name() -> None:
    base = context()
    first = base.bernoulli("0.weight", 0.5)
    assert torch.equal(first, context().bernoulli("0.weight", 0.5))
    for other in (context(t=4), context(seed=6), context(branch=1)):
        assert not torch.equal(first, other.bernoulli("0.weight", 0.5))
    assert base.key("0.weight") != base.key("2.weight")


def test_plain_is_told_from_everything_else() -> None:
    assert Method().is_plain and methods.plain().is_plain
    assert not methods.sam(0.1).is_plain and not Method(scale=lambda c: 1.0).is_plain
    assert Method().mask is everything and Method().perturb is nowhere


def test_a_method_perturbs_once_or_in_each_branch() -> None:
    with pytest.raises(ValueError, match="either perturb or branches"):
        Method(perturb=lambda c: perturbations.NOWHERE, branches=lambda c: [Branch()])
    with pytest.raises(ValueError, match="'sum' or 'mean', got 'max'"):
        Method(combine="max")


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        (Method(mask=lambda c: {"0.weight": True}), TypeError, "the rule 'mask' returned .* must return a Mask"),
        (Method(perturb=lambda c: 0.1), TypeError, "the rule 'perturb' returned 0.1; it must return a Perturbation"),
        (Method(scale=lambda c: "half"), TypeError, "must return a number"),
        (Method(mask=lambda c: c.mask), RuntimeError, "reads context.mask before the mask is chosen"),
        (Method(branches=lambda c: []), ValueError, "gave no branch"),
        (Method(project=lambda c: None), TypeError, "the rule 'project' returned None"),
        (Method(project=lambda c: perturbations.add(dict(c.gradient))), RuntimeError, "reads context.gradient"),
        (Method(correct=lambda c, g: None), TypeError, "the rule 'correct' returned None"),
        (Method(mask=lambda c: masks.everything(PROBLEMS[1].model()[0])), ValueError, "the mask is of another model"),
        (Method(perturb=lambda c: perturbations.add({"0.bias": torch.zeros(99)})), ValueError, r"'0\.bias' has shape"),
        (Method(branches=lambda c: [Branch(weight=0.0)], combine="mean"), ValueError, "gave no branch with a weight"),
    ],
)
def test_a_rule_that_is_wrong_is_told_so_and_changes_nothing(method: Method, error, message: str) -> None:
    problem = PROBLEMS[1]
    model = problem.model()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(error, match=message):
        sgd.step(problem.closure(model, 0))
    assert sgd.t == 0 and all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_turns_are_counted_for_each_level_and_asker() -> None:
    memory = {}
    levels = ["full", "core", "full", "core", "full"]
    assert [context(memory=memory, level=level).count_and_check_due("a", 2) for level in levels] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert context(memory=memory, level="full").count_and_check_due("b", 2), "another asker has its own count"


def test_what_waits_for_the_gradient_is_none_and_then_is_not() -> None:
    by_mask = Method(mask=lambda c: masks.only(c.parameters, list(c.gradient)[:1]))
    by_perturbation = methods.sam(0.1)
    dropped = Branch(by_mask.mask, lambda c: perturbations.drop_outside(c.mask))
    for method, branch, moves in (
        (by_mask, Branch(by_mask.mask), False),
        (by_perturbation, Branch(perturb=by_perturbation.perturb), True),
        (by_mask, dropped, True),
    ):
        before = choose(method, branch, context(), ALL_ONES)
        assert before.needs_gradient and before.leaves_base == moves
        after = choose(method, branch, context(a_gradient()), ALL_ONES)
        assert not after.needs_gradient and after.leaves_base == moves
        after.release_gradient()
        assert after.perturbation is None
        with pytest.raises(NeedsGradient):
            _ = after.context.gradient


def test_an_unfinished_attempt_leaves_memory_alone() -> None:
    memory = {"n": 1}

    def mask(c: Context) -> masks.Mask:
        c.memory["n"] = 2
        return masks.everything(c.parameters)

    choice = choose(Method(), Branch(mask), context(memory=memory), ALL_ONES)
    assert memory == {"n": 1} and choice.context.memory == {"n": 2}
