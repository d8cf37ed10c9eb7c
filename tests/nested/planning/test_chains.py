"""Hidden layers named by patterns: which makers go with which taker."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from partialsgd import Width, nest
from partialsgd.nested.planning.groups import Producer, UnitGroup, UnitSlice, hidden_groups
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.switch import Switch
from tests.nested.checks import assert_one_function, few, shaken, untouched


class Gated(nn.Module):
    """down(silu(gate(x)) · up(x)), of this repository and no library."""

    def __init__(self, width: int, hidden: int, *, gated: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, width, bias=bias)
        self.gate = nn.Linear(width, hidden, bias=bias) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.tanh(self.up(x)) if self.gate is None else torch.nn.functional.silu(self.gate(x)) * self.up(x)
        y: Tensor = self.down(gate)
        return y


class Blocks(nn.Module):
    def __init__(self, count: int = 2, **options: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Gated(5, 7 + i, **options) for i in range(count))
        self.special = Gated(5, 4, **options)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        y: Tensor = self.special(x)
        return y


def groups(model: nn.Module, *chains: tuple[str, ...]) -> list[UnitGroup]:
    return hidden_groups(NestPlan(model, Switch(("core", "full"))), chains)


def gated(name: str, units: int) -> UnitGroup:
    return UnitGroup(units, (Producer(f"{name}.gate"), Producer(f"{name}.up")), (UnitSlice(f"{name}.down.weight", 1),))


NUMBERED = [gated("blocks.0", 7), gated("blocks.1", 8)]
PATTERNS = {
    **{pattern: [*NUMBERED, gated("special", 4)] for pattern in ("*.{}", "{}")},
    **{pattern: NUMBERED for pattern in ("blocks.*.{}", "blocks.?.{}", "blocks.[0-9].{}", "?.{}", "[!a-z].{}")},
    "blocks.1.{}": NUMBERED[1:],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_a_wildcard_stands_for_is_the_same_in_all(pattern: str) -> None:
    chain = tuple(pattern.format(name) for name in ("gate", "up", "down"))
    assert groups(Blocks(), chain) == PATTERNS[pattern]


def test_a_dot_is_no_wildcard() -> None:
    model = nn.ModuleDict({"axup": nn.Linear(3, 4), "a": nn.ModuleDict({"up": nn.Linear(3, 5)}), "d": nn.Linear(5, 3)})
    assert groups(model, ("a.up", "d"))[0].units == 5


def test_indices_of_a_sequential_are_names() -> None:
    layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    assert groups(layers, ("0", "2"), ("2", "4")) == [
        UnitGroup(8, (Producer("0"),), (UnitSlice("2.weight", 1),)),
        UnitGroup(6, (Producer("2"),), (UnitSlice("4.weight", 1),)),
    ]
    inner = nn.ModuleDict({"a": copy.deepcopy(layers), "b": copy.deepcopy(layers)})
    assert [g.name for g in groups(inner, ("0", "2"))] == ["a.0", "b.0"]
    assert [g.name for g in groups(inner, ("a.0", "a.2"))] == ["a.0"]


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (("blocks.*.gate", "*.down"), r"'blocks\.0\.gate' makes units, and no layer that matches '\*\.down'"),
        (("*.up", "blocks.0.down"), "makes units, and no layer that matches"),
        (("*.up", "*.doun"), r"'\*\.doun' matches no module.*down"),
        (("*.down", "*.down"), r"'blocks\.0\.down' makes 5 units and 'blocks\.0\.down' takes 7"),
        (("blocks.0", "special"), r"'special' neither makes nor takes units: it is a Gated"),
    ],
)
def test_a_chain_that_does_not_hold_says_where(chain: tuple[str, ...], message: str) -> None:
    model = Blocks()
    with untouched(model), pytest.raises(ValueError, match=message):
        nest(model, Width(1 / 2, hidden=chain))


def test_a_flattened_image_has_several_inputs_for_a_unit_and_a_sequence_is_refused() -> None:
    conv = nn.ModuleDict({"c": nn.Conv2d(3, 4, 3), "f": nn.Linear(36, 2)})
    assert groups(conv, ("c", "f")) == [UnitGroup(4, (Producer("c"),), (UnitSlice("f.weight", 1, width=9),))]
    with pytest.raises(ValueError, match="'c' makes 4 units and 'f' takes 36"):
        groups(nn.ModuleDict({"c": nn.Linear(3, 4), "f": nn.Linear(36, 2)}), ("c", "f"))


@pytest.mark.parametrize("norms", ["shared", "separate"])
def test_a_norm_among_the_names_is_over_the_units(norms: str) -> None:
    model = shaken(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)))
    before = copy.deepcopy(model)
    assert groups(model, ("0", "1", "4")) == [
        UnitGroup(4, (Producer("0"),), (UnitSlice("4.weight", 1, width=4),), (UnitSlice("1.running_mean", 0),))
    ]
    nested = nest(model, Width(1 / 2, hidden=("0", "1", "4")), norms=norms)
    x = torch.randn(5, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_one_function(before, nested, {"input": x}, is_mask=norms == "shared")


@few
@given(
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=3, unique=True),
    st.sampled_from(["first", "norm"]),
)
def test_masked_structural_and_extracted_are_one_function(count, is_gated, bias, ratios, order) -> None:
    model = shaken(Blocks(count, gated=is_gated, bias=bias))
    before = copy.deepcopy(model)
    hidden = ("gate", "up", "down") if is_gated else ("up", "down")
    nested = nest(model, levels={f"l{i}": Width(r, hidden=hidden, order=order) for i, r in enumerate(sorted(ratios))})
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_one_function(before, nested, {"x": x})
