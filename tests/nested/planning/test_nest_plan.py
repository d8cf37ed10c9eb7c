"""The plan in the making: patterns, refusals, claims, and the moment when all of it is carried out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from partialsgd.nested.layers.linear_maps import linear_map_of
from partialsgd.nested.layers.low_rank import LowRankLayer
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import Switch
from partialsgd.testing.problems import Tied
from tests.nested.checks import untouched
from tests.zoo import encoder, gpt2, t5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"fc1": nn.Linear(4, 8), "fc2": nn.Linear(8, 4)}) for _ in range(3))
        self.head = nn.Linear(4, 2)


def site(model: nn.Module, seed: int = 0) -> NestPlan:
    return NestPlan(model, Switch(("core", "full")), seed)


def low(place: NestPlan, name: str) -> LowRankLayer:
    layer = place.modules[name]
    return LowRankLayer(layer, linear_map_of(layer), {"core": 1}, place.switch, init="svd", key=0)


def test_a_pattern_matches_a_name_or_a_dotted_suffix_and_all_that_lies_inside() -> None:
    place = site(Net())
    assert place.match(["*.fc1"]) == place.match(["fc1"]) == [f"blocks.{i}.fc1" for i in range(3)]
    assert place.match(["blocks.1"]) == ["blocks.1", "blocks.1.fc1", "blocks.1.fc2"]
    assert place.match(["head", "0.fc?"]) == ["blocks.0.fc1", "blocks.0.fc2", "head"], "in the order of the model"
    assert place.match([]) == []


def test_a_pattern_that_matches_nothing_names_the_closest() -> None:
    place = site(Net())
    with pytest.raises(ValueError, match=r"pattern 'haed' matches no module; the closest names are 'head'"):
        place.match(["head", "haed"])
    with pytest.raises(ValueError, match=r"blocks\.0\.fc1|blocks\.1\.fc1|blocks\.2\.fc1"):
        place.match(["blocks.?.fc3"])


def test_names_far_from_all_others_get_a_real_name_as_an_example() -> None:
    with pytest.raises(ValueError, match=r"names are like '[^']+'"):
        site(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))).match(["*.attention.query"])


@pytest.mark.parametrize(
    ("build", "name", "reason"),
    [
        (gpt2, "lm_head", r"tied to 'transformer\.wte\.weight'"),
        (t5, "lm_head", r"tied to 'shared\.weight'"),
        (Tied, "head", r"tied to 'embedding\.weight'"),
        (encoder, "layers.0.self_attn.out_proj", "belongs to nn.MultiheadAttention|NonDynamicallyQuantizableLinear"),
        (encoder, "layers.0.norm1", "LayerNorm; only Linear"),
    ],
)
def test_a_layer_that_cannot_be_nested_is_refused_with_the_reason(build, name: str, reason: str) -> None:
    model = build()
    with untouched(model), pytest.raises(ValueError, match=rf"'{name}' cannot be nested: .*{reason}"):
        site(model).linear_map(name)


def test_hooks_would_be_lost_and_are_a_reason() -> None:
    for register in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"):
        model = Net()
        getattr(model.head, register)(lambda *_: None)
        assert (
            "hooks" in str(site(model).why_not_nestable("head"))
            and site(model).why_not_nestable("blocks.0.fc1") is None
        )


def test_a_layer_that_is_registered_twice_is_tied_to_itself() -> None:
    layer = nn.Linear(3, 3)
    assert site(nn.ModuleDict({"a": layer, "b": layer})).why_not_nestable("a") == "its weight is tied to 'b.weight'"


def test_a_layer_is_claimed_once() -> None:
    place = site(Net())
    place.replace("head", low(place, "head"))
    with pytest.raises(ValueError, match="'head' is matched by LowRank and LowRank"):
        place.replace("head", low(place, "head"))


def test_nothing_changes_before_commit_and_then_every_place_of_a_module() -> None:
    model = Net()
    model.alias, model.blocks[0]["again"] = model.head, model.head
    place = site(model)
    with untouched(model):
        place.replace("head" if "head" in place.modules else "blocks.0.again", low(place, _name(place, model)))
    assert place.carry_out() is model
    assert isinstance(model.head, LowRankLayer)
    assert model.head is model.alias is model.blocks[0]["again"]


def _name(place: NestPlan, model: Net) -> str:
    return next(name for name, module in place.modules.items() if module is model.head)


def test_a_replacement_takes_the_mode_of_the_layer() -> None:
    model = Net()
    model.head.eval()
    place = site(model)
    for name in ("head", "blocks.0.fc1"):
        place.replace(name, low(place, name))
    assert not place.replacements["head"].training and place.replacements["blocks.0.fc1"].training


def test_a_draw_depends_on_the_seed_and_the_name_alone() -> None:
    model = Net()
    key = site(model, 1).key("head")
    torch.manual_seed(99)
    assert key == site(Net(), 1).key("head")
    assert len({key, site(model, 2).key("head"), site(model, 1).key("blocks.0.fc1")}) == 3
