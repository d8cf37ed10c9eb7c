"""What a rule cannot tell yet waits for the gradient, and an attempt leaves no trace."""

from __future__ import annotations

import pytest

from partialsgd import Branch, Context, Method, masks, methods, perturbations
from partialsgd.engine.rules import choose
from partialsgd.method import NeedsGradient
from tests.test_rules import a_gradient, context


def test_what_waits_for_the_gradient_is_none_and_then_is_not() -> None:
    by_mask = Method(mask=lambda c: masks.only(c.parameters, list(c.gradient)[:1]))
    by_perturbation = methods.sam(0.1)
    dropped = Branch(by_mask.mask, lambda c: perturbations.drop_outside(c.mask))
    for method, branch, moves in (
        (by_mask, Branch(by_mask.mask), False),
        (by_perturbation, Branch(perturb=by_perturbation.perturb), True),
        (by_mask, dropped, True),
    ):
        before = choose(method, branch, context())
        assert before.needs_gradient and before.leaves(perturbations.nowhere()) == moves
        after = choose(method, branch, context(a_gradient()))
        assert not after.needs_gradient and after.leaves(perturbations.nowhere()) == moves
        assert after.without_gradient().perturbation is None
        with pytest.raises(NeedsGradient):
            _ = after.without_gradient().context.gradient


def test_an_unfinished_attempt_leaves_memory_alone() -> None:
    memory = {"n": 1}

    def mask(c: Context) -> masks.Mask:
        c.memory["n"] = 2
        return masks.everything(c.parameters)

    choice = choose(Method(), Branch(mask), context(memory=memory))
    assert memory == {"n": 1} and choice.context.memory == {"n": 2}
