"""Every recipe gives the loop what it asks for: nobody else would notice, for a task is imported by its name."""

from __future__ import annotations

import inspect
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.lab.recipes import RECIPES, build
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.training.recipe_tools import MakeSpec, latency, nest_model
from partialsgd.lab.training.settings import LevelOptions, parse_budget
from partialsgd.lab.training.task import Batches, Task
from partialsgd.nested import Nested
from tests.lab.made_runs import TINY

SPECS: dict[str, MakeSpec] = {
    "width": lambda ratios: ps.Width(ratios),
    "low-rank": lambda ratios: ps.LowRank(ratios, init="matched"),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def nested(nest: Any = "width", ratio: tuple[str, ...] = ("1/2",), alone: str | None = None, **options: Any) -> Nested:
    return nest_model(model(), LevelOptions(nest=nest, ratio=ratio, alone=alone), SPECS, **{"seed": 0, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nest": "depth"}, "nest must be one of width, low-rank, none; got 'depth'"),
        ({"ratio": ()}, "at least one ratio"),
        ({"ratio": ("1/2", "0.5")}, "two levels would have the same name: 1/2, 1/2"),
        ({"ratio": ("half",)}, "written like 1/32"),
        ({"ratio": ("1",)}, "is not smaller than 'full'"),
        ({"ratio": ("0.9", "1")}, "is not smaller than 'full'"),
        ({"alone": "tiny"}, "alone must be one of the levels core, full; got 'tiny'"),
        ({"nest": "none", "alone": "core"}, "there are no levels"),
    ],
)
def test_levels_that_cannot_be_made_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nested(**options)


class Slow(nn.Module):
    """The first calls are slower, and one later call is."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.modes = 0, set[tuple[bool, bool]]()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.modes.add((self.training, torch.is_inference_mode_enabled()))
        time.sleep(0.1 if self.calls in (1, 2, 7) else 0.002)
        return x


def test_it_is_the_median_of_calls_in_evaluation_and_the_mode_stays() -> None:
    network = Slow().train()
    found = latency(network, torch.zeros(1))
    assert 0.002 <= found < 0.05
    assert network.modes == {(False, True)} and network.training


@pytest.mark.parametrize("recipe", TINY)
def test_a_task_has_all_members_and_keeps_the_promises_that_the_loop_builds_on(recipe: str) -> None:
    made: Any = build(RECIPES[recipe](**TINY[recipe]))
    for found, protocol in ((made, Task), (made.batches, Batches)):
        for name in inspect.get_annotations(protocol):
            assert hasattr(found, name), name
        for name, method in vars(protocol).items():
            if inspect.isfunction(method) and (not name.startswith("_") or name == "__len__"):
                expected = [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]
                assert list(inspect.signature(getattr(found, name)).parameters) == expected, name
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


def test_levels_are_named_smallest_first_and_one_alone_starts_as_it_does_among_them() -> None:
    assert nested("low-rank", ("0.5", "1/4")).levels == ("1/4", "1/2", "full")
    network, x = nested("none"), torch.randn(5, 6)
    assert network.levels == ("full",)
    with network.at("full"):
        assert torch.equal(network(x), model()(x))
    joint, alone = (nested(alone=level, example=x) for level in (None, "core"))
    assert joint.levels == ("core", "full") and alone.levels == ("full",)
    assert alone.size("full") == joint.size("core") < joint.size("full")
    with joint.at("core"):
        assert torch.equal(alone(x), joint(x))
    assert len(list(nested(norms="shared").buffers())) < len(list(joint.buffers())), "norms reach the nested model"
    drawn = (nested("low-rank", seed=seed).parameters() for seed in (1, 1, 2))
    one, two, three = (torch.cat([p.flatten() for p in parameters]) for parameters in drawn)
    assert torch.equal(one, two) and not torch.equal(one, three), "and so does the seed"


def test_a_budget_chooses_the_sizes_and_several_give_several_levels() -> None:
    network, x = model(), torch.randn(16, 6)
    losses = [lambda: network(x).pow(2).mean()]
    options = LevelOptions(nest="width", level_budget="parameters=1/2,3/4")
    small = nest_model(network, options, SPECS, seed=0, example=x[:2], losses=losses)
    assert small.levels == ("1/2", "3/4", "full")
    assert small.size("1/2") <= small.size("full") / 2 < small.size("3/4") <= 3 * small.size("full") / 4


@pytest.mark.parametrize("text", ["1/4", "parameters", "parameters=", "latency=1/2", "flops=half", "flops=1/4,"])
def test_a_budget_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be written like"):
        parse_budget(text)


def test_a_budget_needs_a_dimension_that_it_can_choose() -> None:
    with pytest.raises(ValueError, match="budget chooses units or ranks"):
        Images(nest="depth", level_budget="parameters=1/2")
    with pytest.raises(ValueError, match="full='own' is for low-rank layers; with nest='width' omit it"):
        Images(nest="width", full="own")
