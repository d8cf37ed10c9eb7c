"""The switch: which level runs, and a backward that begins at another."""

from __future__ import annotations

import pytest
import torch

from partialsgd.nested.switch import Switch

LEVELS = ("small", "medium", "full")


def test_levels_nest_and_every_way_out_restores() -> None:
    switch = Switch(LEVELS)
    assert switch.level == "full"
    with switch.at("small", "medium"):
        assert (switch.level, switch.teacher) == ("small", "medium")
        switch.teacher_outputs = "outputs"
        with switch.at("medium"):
            assert (switch.level, switch.teacher, switch.teacher_outputs) == ("medium", None, None)
            with pytest.raises(ZeroDivisionError), switch.at("full"):
                raise ZeroDivisionError
            assert switch.level == "medium"
        assert (switch.level, switch.teacher, switch.teacher_outputs) == ("small", "medium", "outputs")
    assert (switch.level, switch.teacher, switch.teacher_outputs) == ("full", None, None)


@pytest.mark.parametrize(("level", "teacher"), [("large", None), ("small", "large"), ("", None), ("Full", None)])
def test_an_unknown_level_lists_the_levels_and_changes_nothing(level: str, teacher: str | None) -> None:
    switch = Switch(LEVELS)
    with switch.at("medium"):
        with pytest.raises(ValueError, match="there are 'small', 'medium', 'full'"), switch.at(level, teacher):
            raise AssertionError("the body must not run")
        assert (switch.level, switch.teacher) == ("medium", None)


def outputs(switch: Switch, x: torch.Tensor) -> dict[str, object]:
    y = {"logits": x * 2, "others": [(x * 3, None), "text", x.detach()]}
    switch.watch(y)
    return y


@pytest.mark.parametrize("which", ["logits", "others"])
def test_every_output_is_watched_however_deep_it_lies(which: str) -> None:
    switch, x = Switch(LEVELS), torch.ones(3, requires_grad=True)
    with switch.at("small"):
        y = outputs(switch, x)
    tensor = y["logits"] if which == "logits" else y["others"][0][0]
    with pytest.raises(RuntimeError, match=r"began at level 'full', its forward ran at level 'small'.*at\('small'\)"):
        tensor.sum().backward()
    assert x.grad is None
    with switch.at("small"):
        tensor.sum().backward()
    assert x.grad is not None


def test_without_gradients_nothing_is_watched() -> None:
    switch, x = Switch(LEVELS), torch.ones(3, requires_grad=True)
    y = x * 2
    with torch.no_grad(), switch.at("small"):
        switch.watch(y)
    y.sum().backward()
    assert x.grad is not None
