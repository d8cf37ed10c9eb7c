"""What a spec says survives JSON; what JSON cannot hold is said to be missing."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from partialsgd import Depth, LayerSum, LowRank, Width
from partialsgd.export import specs_json
from partialsgd.nested.specs import Spec

SPECS: list[Spec] = [
    LowRank(1 / 32),
    LowRank((0.1, 1 / 3), where="*.fc1", exclude=("head",), ratios={"*.fc1": (0.2, 0.4)}, init="matched"),
    Width(1 / 3),
    Width(1, hidden=("*.fc1", "*.fc2"), query_key=True, order="gradient"),
    Width((0.25, 0.5), hidden=(("*.up", "*.down"), ("*.fc1", "*.gate", "*.fc2")), exclude="x"),
    Depth("layers", keep=2),
    Depth(("a.layers", "b.layers"), keep=(0.5, 3), pick="even"),
]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_spec_comes_back(spec: Spec) -> None:
    said = specs_json.levels_as_json({"core": (spec,), "none": ()})
    assert specs_json.levels_from_json(json.loads(json.dumps(said))) == {"core": (spec,), "none": ()}
    assert not specs_json.has_code(said["core"][0])


def test_an_int_stays_one() -> None:
    keep = specs_json.from_json(json.loads(json.dumps(specs_json.as_json(Depth("layers", keep=1)))))
    share = specs_json.from_json(json.loads(json.dumps(specs_json.as_json(Depth("layers", keep=1.0)))))
    assert isinstance(keep, Depth) and keep.count(4) == 1  # one block, not all of them
    assert isinstance(share, Depth) and share.count(4) == 4


def test_a_list_comes_back_as_a_tuple() -> None:
    spec = specs_json.from_json(specs_json.as_json(LowRank([0.25], where=["a", "b"])))
    assert spec == LowRank((0.25,), where=("a", "b"))


def make(layer: nn.Module) -> nn.Module:
    return nn.Identity()


def test_of_a_layer_sum_the_function_is_only_named() -> None:
    said = specs_json.as_json(LayerSum("fc", make, core="new"))
    assert said == {"kind": "LayerSum", "where": "fc", "make": "make", "core": "new"}
    assert specs_json.has_code(said)
    assert specs_json.are_same(said, LayerSum("fc", lambda layer: layer, core="new"))
    assert not specs_json.are_same(said, LayerSum("fc", make))
    assert not specs_json.are_same(said, LowRank(1 / 2))
    with pytest.raises(ValueError, match="LayerSum cannot be read"):
        specs_json.from_json(said)


def test_a_spec_without_a_start_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from partialsgd import nest

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    monkeypatch.setattr(torch.linalg, "svd", None)
    monkeypatch.setattr(torch, "argsort", None)
    specs = [LowRank(1 / 2, where="0"), Width(1 / 2, hidden=("2", "4"), order="gradient")]
    nested = nest(model, levels={"core": [specs_json.without_start(spec) for spec in specs]})
    assert nested.levels == ("core", "full")
    assert specs_json.without_start(SPECS[-1]) is SPECS[-1]
