"""Every recipe gives the loop what it asks for: nobody else would notice, for a task is imported by its name."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from partialsgd.lab.recipes import RECIPES, build
from partialsgd.lab.training.task import Batches, Task
from tests.lab.made_runs import TINY


@pytest.mark.parametrize("recipe", TINY)
def test_a_task_has_all_members_with_their_parameters(recipe: str) -> None:
    made = build(RECIPES[recipe](**TINY[recipe]))
    for found, protocol in ((made, Task), (made.batches, Batches)):
        for name in inspect.get_annotations(protocol):
            assert hasattr(found, name), name
        for name, method in vars(protocol).items():
            if inspect.isfunction(method) and (not name.startswith("_") or name == "__len__"):
                expected = [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]
                assert list(inspect.signature(getattr(found, name)).parameters) == expected, name


@pytest.mark.parametrize("recipe", TINY)
def test_a_task_keeps_the_promises_that_the_loop_builds_on(recipe: str) -> None:
    made: Any = build(RECIPES[recipe](**TINY[recipe]))
    batches = made.batches
    assert len(batches) >= 1 and batches.units(0, 0) > 0
    assert made.data_hash() == build(RECIPES[recipe](**TINY[recipe])).data_hash()
    assert 0 <= made.learning_rate(0, 100) <= 1 and 0 <= made.learning_rate(50, 100) <= 1
    glances = {level: made.quick_eval(level) for level in made.network.levels}
    assert all("loss" in numbers for numbers in glances.values())
    worse = {level: {name: 1e3 if name == "loss" else 0.0 for name in numbers} for level, numbers in glances.items()}
    assert made.selection_score(glances) > made.selection_score(worse)
    small, *_, full = made.network.levels
    assert 0 < made.flops(small, batches.make(0, 0)) <= made.flops(full, batches.make(0, 0))
