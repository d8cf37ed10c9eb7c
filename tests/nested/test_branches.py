"""A level as a branch: what moves, where it runs, and who teaches."""

from __future__ import annotations

import pytest
import torch

from partialsgd import PartialSGD, methods
from partialsgd.method import Context
from partialsgd.nested.branches import branch_of
from partialsgd.parameters import Parameters
from tests.families import family


def context(nested):
    return Context(0, 0, Parameters(nested), {})


def test_the_mask_is_what_the_level_uses_and_is_made_once() -> None:
    nested = family()
    here = context(nested)
    branch = branch_of(nested, "core")
    mask = branch.mask(here)
    used = set(nested.parameters(level="core"))
    assert {name for name, p in here.parameters.items() if p in used} == {name for name in mask if mask[name]}
    assert branch.mask(here) is mask


def test_the_full_level_is_no_perturbation_and_the_core_is_a_switch() -> None:
    nested = family()
    assert branch_of(nested, "full").perturb(context(nested)).is_nowhere
    perturbation = branch_of(nested, "core").perturb(context(nested))
    assert perturbation.is_structural
    with perturbation.at():
        assert nested.level == "core"
    assert nested.level == "full"


def test_a_step_inside_of_at_is_refused() -> None:
    nested = family()
    sgd = PartialSGD(nested, torch.optim.SGD(nested.parameters(), 0.1), methods.alternating())
    with nested.at("core"), pytest.raises(RuntimeError, match=r"outside of nested.at\('core'\)"):
        sgd.step(lambda: nested(torch.ones(2, 6)).sum())


@pytest.mark.parametrize("make", [methods.alternating, methods.only, methods.slimmable, methods.sandwich])
def test_a_network_that_is_not_nested_is_refused(make) -> None:
    with pytest.raises(TypeError, match=r"ps\.nest"):
        make().bind(torch.nn.Linear(2, 2))
