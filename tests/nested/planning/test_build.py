"""The layers that each spec matches at each level, and those that it leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from partialsgd import Depth, LowRank, Nested, Width, nest
from partialsgd.nested.layers.low_rank import LowRankLayer
from partialsgd.nested.layers.narrow import NarrowLayer
from partialsgd.nested.planning.build import width_groups
from partialsgd.nested.planning.groups import unit_slices
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import Switch
from tests.nested.checks import assert_one_function, shaken, untouched
from tests.zoo import gpt2, llama, marian, normal, resnet18


def chain() -> nn.Sequential:
    layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 3)]
    return nn.Sequential(*layers)


def ranks(nested: Nested) -> dict[str, list[int]]:
    return {n: m.bounds[1:] for n, m in nested.nested_modules().items() if isinstance(m, LowRankLayer)}


def sizes(nested: Nested, level: str) -> dict[str, tuple[int, int]]:
    return {n: m.sizes_at(level) for n, m in nested.nested_modules().items() if isinstance(m, NarrowLayer)}


def test_by_default_all_layers_but_the_last_and_the_summary_says_so() -> None:
    nested = nest(chain(), LowRank(1 / 2))
    assert ranks(nested) == {"0": [3], "2": [4], "4": [5]}
    assert list(nested.skipped) == ["6"] and "output layer" in nested.skipped["6"]
    assert "6" in nested.summary() and "output layer" in nested.summary()


def test_by_default_tied_layers_are_left_and_the_other_end_is_named() -> None:
    nested = nest(gpt2(), LowRank(1 / 4))
    assert nested.skipped == {"lm_head": "its weight is tied to 'transformer.wte.weight'"}
    assert len(ranks(nested)) == 4 * 3 and "transformer.wte.weight" in nested.summary()
    assert "lm_head" in nest(marian(), LowRank(1 / 4)).skipped


def test_single_layers_have_their_own_ratio_and_excluded_ones_none() -> None:
    nested = nest(chain(), LowRank((1 / 8, 1 / 2), ratios={"2": (1 / 4, 1)}, exclude="4"))
    assert ranks(nested) == {"0": [1, 3], "2": [2, 8]}
    assert nested.skipped["4"] == "excluded"
    everywhere = nest(llama(), LowRank(1 / 4, where="mlp", ratios={"layers.1": 1 / 2, "*.down_proj": 1 / 16}))
    assert ranks(everywhere)["model.layers.1.mlp.down_proj"] == [8], "the first pattern that matches counts"
    assert ranks(everywhere)["model.layers.0.mlp.down_proj"] == [1]
    assert ranks(everywhere)["model.layers.0.mlp.up_proj"] == [4]


def test_a_level_that_does_not_name_a_layer_has_it_whole() -> None:
    model = shaken(chain())
    before = copy.deepcopy(model)
    nested = nest(model, levels={"s": LowRank(1 / 4, where=("0", "2")), "m": LowRank(1 / 2, where="0")})
    assert ranks(nested) == {"0": [2, 3], "2": [2]}
    assert_one_function(before, nested, {"input": normal(3, 6)})


def test_excluding_at_one_level_is_not_excluding_at_the_next() -> None:
    nested = nest(chain(), levels={"s": LowRank(1 / 8), "m": LowRank(1 / 2, exclude="2")})
    assert ranks(nested)["2"] == [1], "low rank at s, whole at m"
    assert not any(line.split()[:2] == ["2", "-"] for line in nested.summary().splitlines()), "it is nested"
    model = chain()
    with untouched(model), pytest.raises(ValueError, match="order the levels"):  # whole at s, low rank at m
        nest(model, levels={"s": LowRank(1 / 8, exclude="2"), "m": LowRank(1 / 2)})


@pytest.mark.parametrize(
    ("exclude", "expected"),
    [
        ("0", {"2": (5, 8), "4": (6, 5), "6": (3, 6)}),
        ("2", {"4": (6, 10), "6": (3, 6)}),
        ("6", {"0": (4, 6), "2": (5, 4), "4": (12, 5)}),
        (("0", "6"), {"2": (5, 8), "4": (12, 5)}),
    ],
)
def test_an_excluded_layer_keeps_its_units_and_its_inputs_and_no_other_does(exclude, expected) -> None:
    nested = nest(chain(), Width(1 / 2, exclude=exclude))
    assert sizes(nested, "core") == expected
    assert nested(torch.randn(2, 6)).shape == (2, 3)
    with nested.at("core"):
        assert nested(torch.randn(2, 6)).shape == (2, 3)


class Product(nn.Module):
    """c(a(x) · b(x)): the units of a and b are the same units."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.c(self.a(x) * self.b(x)) + self.d(self.b(x))
        return y


@pytest.mark.parametrize(
    "hidden", [(("a", "c"), ("b", "c")), (("a", "b", "c"), ("a", "b", "d")), (("a", "c"), ("b", "a", "d"))]
)
def test_units_of_one_layer_belong_to_one_group(hidden) -> None:
    """Otherwise each group would order them in its own way, and the network would be another function."""
    model = Product()
    with untouched(model), pytest.raises(ValueError, match=r"matched by two|two groups"):
        nest(model, Width(1 / 2, hidden=hidden, order="norm"))
    specs = [Width(1 / 2, hidden=one, order="norm") for one in hidden]
    with untouched(model), pytest.raises(ValueError, match=r"matched by two|two groups"):
        nest(model, specs)


def test_two_widths_for_two_kinds_of_layers() -> None:
    model = shaken(chain())
    before = copy.deepcopy(model)
    nested = nest(model, [Width(1 / 4, hidden=("0", "2")), Width(1 / 2, hidden=("4", "6"), order="norm")])
    assert sizes(nested, "core") == {"0": (2, 6), "2": (10, 2), "4": (6, 10), "6": (3, 6)}
    assert_one_function(before, nested, {"input": normal(3, 6)})


def test_the_number_of_units_is_rounded_and_at_least_one() -> None:
    assert [sizes(nest(chain(), Width(r)), "core")["4"][0] for r in (1e-3, 0.2, 0.3, 0.5, 1.0)] == [1, 2, 4, 6, 12]


def test_depth_takes_the_list_that_is_named_and_not_the_lists_inside_it() -> None:
    model = resnet18(width=4)
    nested = nest(model, Depth("stages.*", keep=1), norms="shared")
    assert {n for n, by in nested.nested_by.items() if by == "Depth"} == {f"stages.{i}" for i in range(4)}
    outer = nest(nn.ModuleDict({"layers": nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(3))}),
                 Depth("layers", keep=2))  # fmt: skip
    assert outer.nested_by == {"layers": "Depth"}


def test_axes_combine_at_each_level() -> None:
    model = shaken(llama())
    before = copy.deepcopy(model)
    small = [Depth("layers", keep=1), LowRank(1 / 8, where="self_attn"), Width(1 / 4)]
    medium = [Depth("layers", keep=2), LowRank(1 / 2, where="self_attn"), Width(1 / 2)]
    nested = nest(model, levels={"small": small, "medium": medium})
    assert nested.levels == ("small", "medium", "full")
    ids = torch.randint(2, 50, (2, 5), generator=torch.Generator().manual_seed(0))
    assert_one_function(before, nested, {"input_ids": ids})
    counts = [sum(p.numel() for p in nested.parameters(level=level)) for level in nested.levels]
    assert counts == sorted(counts) and len(set(counts)) == 3
    for inner, outer in zip(nested.levels, nested.levels[1:], strict=False):
        assert set(nested.parameters(level=inner)) < set(nested.parameters(level=outer))


def test_single_hidden_layers_have_a_width_of_their_own() -> None:
    nested = nest(chain(), Width((1 / 4, 1 / 2), ratios={"2": (1 / 10, 1), "0": (1 / 8, 1 / 4)}))
    assert [sizes(nested, "1/4")[name][0] for name in ("0", "2", "4")] == [1, 1, 3]
    assert [sizes(nested, "1/2")[name] for name in ("0", "2", "4")] == [(2, 6), (10, 2), (6, 10)]
    gated = nest(llama(), Width(1 / 5, ratios={"layers.1.mlp.up_proj": 2 / 5, "layers.2": 1}))
    assert [sizes(gated, "core")[f"model.layers.{i}.mlp.gate_proj"][0] for i in range(3)] == [5, 10, 25]
    model = chain()
    with untouched(model), pytest.raises(ValueError, match="pattern '6' of ratios matches no layer that makes"):
        nest(model, Width(1 / 2, ratios={"6": 1 / 4}))


@pytest.mark.parametrize(("build", "query_key"), [(chain, False), (gpt2, True)])
def test_the_slices_of_a_group_are_what_a_level_lacks(build: Callable[[], nn.Module], query_key: bool) -> None:
    model, spec = build(), Width(1 / 2, query_key=query_key)
    plan = NestPlan(model, Switch(("core", "full")))
    kept: dict[tuple[str, int], int] = {}
    for group in width_groups(plan, spec):
        for cut in unit_slices(plan, group):
            size = cut.repeats * cut.width * group.units + cut.tail
            assert size == model.get_parameter(cut.parameter).shape[cut.dim]
            kept[cut.parameter, cut.dim] = cut.repeats * cut.width * round(group.units / 2) + cut.tail
    nested = nest(model, spec)
    narrow = {n: m for n, m in nested.nested_modules().items() if isinstance(m, NarrowLayer)}
    assert {name.rpartition(".")[0] for name, _ in kept} == set(narrow)
    for (name, dim), size in kept.items():
        layer, _, leaf = name.rpartition(".")
        tensor = narrow[layer].weight_at("core") if leaf == "weight" else narrow[layer].bias_at("core")
        assert tensor is not None and tensor.shape[dim] == size, name


def test_low_rank_leaves_a_layer_whose_weight_other_code_reads() -> None:
    """Mamba multiplies by such a weight; the extracted layer would have none."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.read, self.b = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.b(self.a(x) @ self.read.weight.T)
            return y

    x = torch.randn(4, 6)
    nested = nest(Reader(), LowRank(1 / 2), example=x)
    assert list(nested.nested_by) == ["a"] and "the code of 'the model' reads its weight" in nested.skipped["read"]
    nested.extract("core", example=x)
    with pytest.raises(ValueError, match=r"'read' cannot be nested: the code of 'the model' reads its weight"):
        nest(Reader(), LowRank(1 / 2, where="read"), example=x)
