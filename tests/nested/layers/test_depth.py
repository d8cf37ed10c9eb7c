"""Fewer residual blocks: the list that others see, and `generate` with a cache."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from partialsgd import Depth, nest
from partialsgd.nested.extract.level import extract_level
from partialsgd.nested.layers.depth import block_indices
from tests.nested.checks import many
from tests.zoo import ZOO, normal, tokens


@many
@given(st.integers(1, 30), st.data())
def test_evenly_spaced_blocks_are_distinct_in_order_and_reach_both_ends(total: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, total))
    even = block_indices(total, keep, "even")
    assert len(even) == keep and even[0] == 0 and list(even) == sorted(set(even)) and max(even) < total
    if keep > 1:
        assert even[-1] == total - 1
        steps = [b - a for a, b in itertools.pairwise(even)]
        assert max(steps) - min(steps) <= 1, "as even as whole numbers allow"
    assert block_indices(total, keep, "first") == tuple(range(keep))


def listed(**options: Any) -> tuple[Any, list[nn.Module]]:
    blocks = [nn.Linear(2, 2) for _ in range(5)]
    model = nn.ModuleDict({"layers": nn.ModuleList(blocks)})
    return nest(model, Depth("layers", **options)), blocks


@pytest.mark.parametrize("pick", [(1, 0, 2, 3, 4), (0, 1, 1, 3, 4), (0, 1, 2), "last"])
def test_an_order_of_blocks_names_each_of_them_and_begins_with_the_first(pick: Any) -> None:
    with pytest.raises(ValueError, match=r"pick (must|lists)"):
        listed(keep=2, pick=pick)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"keep": 2}, {"core": [0, 1]}),
        ({"keep": 3, "pick": "even"}, {"core": [0, 2, 4]}),
        ({"keep": 0.5}, {"core": [0, 1]}),
        ({"keep": (2, 3), "pick": (0, 3, 1, 4, 2)}, {"2": [0, 3], "3": [0, 1, 3]}),
        ({"keep": (1, 3)}, {"1": [0], "3": [0, 1, 2]}),
        ({"keep": (1, 2, 3, 5), "pick": "even"}, {"1": [0], "2": [0, 4], "3": [0, 2, 4], "5": [0, 1, 2, 3, 4]}),
    ],
)
def test_whoever_looks_at_the_list_sees_the_blocks_of_the_level(options: dict[str, Any], expected: Any) -> None:
    nested, blocks = listed(**options)
    layers = nested.model["layers"]
    assert isinstance(layers, nn.ModuleList)
    for level, kept in {**expected, "full": [0, 1, 2, 3, 4]}.items():
        there = [blocks[i] for i in kept]
        with nested.at(level):
            assert list(layers) == there and len(layers) == len(kept)
            assert [layers[i] for i in range(len(kept))] == there
            assert layers[-1] is there[-1] and list(reversed(layers)) == there[::-1]
            assert list(layers[: len(kept)]) == there and list(layers[1:]) == there[1:]
            assert [i for i, _ in enumerate(layers)] == list(range(len(kept)))
            with pytest.raises(IndexError):
                layers[len(kept)]
        used = {p for block in there for p in block.parameters()}
        assert set(nested.parameters(level=level)) == used


def test_a_shortened_list_cannot_be_changed() -> None:
    layers, new = listed(keep=2)[0].model["layers"], nn.Linear(2, 2)
    changes = {"append": (new,), "extend": ([new],), "insert": (0, new), "__setitem__": (1, new), "__delitem__": (1,)}
    for name, arguments in changes.items():
        with pytest.raises(TypeError, match="change the list before nest"):
            getattr(layers, name)(*arguments)
    assert new not in list(layers.children()) and len(layers) == 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.layer_idx = nn.Linear(4, 4), 7

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


@pytest.mark.parametrize("names", [None, ("stem", "middle", "top")])
def test_a_sequential_runs_the_blocks_of_the_level_and_keeps_its_names(names: tuple[str, ...] | None) -> None:
    blocks = [Block() for _ in range(3)]
    body = nn.Sequential(*blocks) if names is None else nn.Sequential(OrderedDict(zip(names, blocks, strict=True)))
    model = nn.Sequential(body, nn.Linear(4, 2)).double()
    keys, x, before = list(model.state_dict()), normal(3, 4), copy.deepcopy(model)
    nested = nest(model, Depth("0", keep=2, pick="even"))
    assert isinstance(model[0], nn.Sequential)
    assert torch.equal(nested(x), before(x))
    with nested.at("core"):
        core = nested(x)
    assert torch.equal(core, before[1](before[0][2](before[0][0](x))))
    full = nested.extract("full")
    assert type(full[0]) is nn.Sequential and list(full.state_dict()) == keys
    plain = nested.extract("core")
    assert torch.equal(plain(x), core) and len(plain[0]) == 2
    assert [block.layer_idx for block in plain[0]] == [0, 1], "blocks know their new places"
    assert [block.layer_idx for block in model[0].children()] == [7, 7, 7], "and the nested model its old ones"


def written(model: nn.Module, **options: Any) -> Tensor:
    ids = tokens(2)[:, :4]
    made: Tensor = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False, pad_token_id=1, **options
    )
    return made


CACHED = [("gpt2", 2, "even"), ("llama", 1, "first"), ("t5", 2, "even"), ("marian", 1, "first")]


@pytest.mark.parametrize(("name", "keep", "pick"), CACHED)
def test_generating_with_a_cache_is_generating_with_the_extracted_model(name: str, keep: int, pick: str) -> None:
    network = ZOO[name]
    torch.manual_seed(1)
    model = network.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)  # so that not all tokens are the same
    nested = nest(model, Depth(network.lists, keep=keep, pick=pick))
    with nested.at("core"):
        core = written(nested.model)
        assert torch.equal(core, written(nested.model, use_cache=False))
    assert torch.equal(core, written(nested.extract("core")))
    full = written(nested.model)
    assert torch.equal(full, written(nested.extract("full")))
    assert not torch.equal(core, full)


def test_blocks_that_are_one_module_stay_one() -> None:
    block = Block()
    model = nn.ModuleDict({"layers": nn.ModuleList([block, block, block])})
    nested = nest(model, Depth("layers", keep=2))
    with nested.at("core"):
        assert list(nested.model["layers"]) == [block, block]
    plain = extract_level(nested.model, "core", {})
    assert plain["layers"][0] is plain["layers"][1] is not block
