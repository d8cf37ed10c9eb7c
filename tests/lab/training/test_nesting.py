"""The nested model that --nest, --ratio and --alone describe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import partialsgd as ps
from partialsgd.lab.training.recipe_tools import MakeSpec, nest_model
from partialsgd.lab.training.settings import LevelOptions
from partialsgd.nested import Nested

SPECS: dict[str, MakeSpec] = {"width": lambda ratios: ps.Width(ratios), "low-rank": lambda ratios: ps.LowRank(ratios)}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def nested(nest: Any = "width", ratio: tuple[str, ...] = ("1/2",), alone: str | None = None, **options: Any) -> Nested:
    return nest_model(model(), LevelOptions(nest=nest, ratio=ratio, alone=alone), SPECS, **{"seed": 0, **options})


def test_one_ratio_gives_a_core_and_several_are_named_smallest_first() -> None:
    assert nested().levels == ("core", "full")
    assert nested("low-rank", ("0.5", "1/4")).levels == ("1/4", "1/2", "full")


def test_none_is_the_plain_network() -> None:
    network, x = nested("none"), torch.randn(5, 6)
    assert network.levels == ("full",)
    with network.at("full"):
        assert torch.equal(network(x), model()(x))


def test_norms_and_seed_reach_the_nested_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPECS, "low-rank", lambda ratios: ps.LowRank(ratios, init="matched"))  # it draws factors
    one, two, three = (
        torch.cat([p.flatten() for p in nested("low-rank", seed=seed).parameters()]) for seed in (1, 1, 2)
    )
    assert torch.equal(one, two) and not torch.equal(one, three)
    shared, separate = (nested(norms=norms) for norms in ("shared", "separate"))
    assert len(list(shared.buffers())) < len(list(separate.buffers()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nest": "depth"}, "nest must be one of width, low-rank, none; got 'depth'"),
        ({"ratio": ()}, "at least one ratio"),
        ({"ratio": ("1/2", "0.5")}, "the same name"),
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


def test_a_level_alone_starts_as_it_does_in_the_nested_model() -> None:
    x = torch.randn(5, 6)
    joint, alone = (nested(alone=level, example=x) for level in (None, "core"))
    assert alone.levels == ("full",) and alone.size("full") == joint.size("core") < joint.size("full")
    with joint.at("core"):
        assert torch.equal(alone(x), joint(x))
