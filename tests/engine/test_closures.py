"""What a closure may be."""

from __future__ import annotations

import functools

import pytest
import torch

from partialsgd.engine.closures import require_loss, with_pass


class Callable:
    def __call__(self, g=None):
        return g


def test_only_a_required_argument_asks_for_the_pass() -> None:
    given = object()
    assert with_pass(lambda: "none")(given) == "none"
    assert with_pass(lambda g: g)(given) is given
    assert with_pass(lambda g="default": g)(given) == "default"
    assert with_pass(lambda *args: args)(given) == ()
    assert with_pass(functools.partial(lambda a, g: (a, g), "a"))(given) == ("a", given)
    assert with_pass(Callable())(given) is None


def test_losses_are_one_number() -> None:
    assert require_loss(0.5) == 0.5
    assert require_loss(torch.tensor([2.0])) == 2.0
    with pytest.raises(TypeError, match="return loss"):
        require_loss(None)
    with pytest.raises(TypeError, match=r"shape \(2,\)"):
        require_loss(torch.zeros(2))
