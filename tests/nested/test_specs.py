"""Specs and the levels that they make, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from partialsgd import Depth, LayerSum, LowRank, Width, methods, nest
from partialsgd.nested.specs import resolve_levels
from tests.nested.checks import many

BAD = [0, 0.0, -0.5, 1.0001, 2, math.nan, math.inf, "1/2", None, "half"]


@pytest.mark.parametrize("kind", [LowRank, Width])
@pytest.mark.parametrize("ratio", [*BAD, [0.5, 2.0], (math.nan,), (0.25, 0)])
def test_a_ratio_outside_0_to_1_is_refused_and_named(kind, ratio) -> None:
    with pytest.raises(ValueError, match=r"a ratio must be in \(0, 1\], got"):
        kind(ratio)


@pytest.mark.parametrize("keep", [0, -1, 0.0, 1.5, math.nan, (1, 0), (0.5, 1.5)])
def test_no_block_and_more_than_all_are_refused(keep) -> None:
    with pytest.raises(ValueError, match=r"at least 1|\(0, 1\]"):
        Depth("layers", keep=keep)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LowRank(()), "at least one ratio is needed"),
        (lambda: Width([]), "at least one ratio is needed"),
        (lambda: Depth("layers", keep=()), "keep must be a number of blocks, or several"),
        (lambda: LowRank(0.5, init="random"), "init must be one of 'svd', 'matched', 'zero'; got 'random'"),
        (lambda: Width(0.5, order="last"), "order must be one of 'first', 'norm', 'gradient'; got 'last'"),
        (lambda: Depth("layers", keep=1, pick="odd"), "pick must be one of 'first', 'even'; got 'odd'"),
        (lambda: LayerSum("fc", nn.Identity, core="full"), "core must be one of 'old', 'new'; got 'full'"),
        (lambda: LowRank(True), "got True"),
        (lambda: Depth("0", keep="2"), "got '2'"),
        (lambda: LowRank(0.5, ratios={"*.fc1": math.nan}), r"a ratio must be in \(0, 1\], got nan"),
        (lambda: LowRank((0.25, 0.5), ratios={"*.fc1": 0.5}), "as many ratios as `ratio` has"),
        (lambda: methods.alternating(order="full"), r"a list of levels such as \['full', 'core'\]"),
        (lambda: Width(0.5, hidden="*.fc1"), r"like \(\"\*\.fc1\", \"\*\.fc2\"\); got '\*\.fc1'"),
        (lambda: Width(0.5, hidden=("*.fc1",)), r"layers that make units and one that takes them"),
        (lambda: Width(0.5, hidden=(("a", "b"), ("c",))), r"layers that make units and one that takes them"),
    ],
)
def test_a_choice_that_does_not_exist_lists_those_that_do(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_make_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="make must be a function of the layer"):
        LayerSum("fc", nn.Linear(2, 2).weight)


@many
@given(st.integers(1, 40), st.floats(1e-3, 1.0))
def test_a_share_of_blocks_is_rounded_and_never_none_or_more_than_all(total: int, share: float) -> None:
    count = Depth("layers", keep=share).count(total)
    assert 1 <= count <= total and abs(count - share * total) <= max(0.5, 1 - share * total)
    assert Depth("layers", keep=min(3, total)).count(total) == min(3, total), "a whole number is a number of blocks"


LOW, WIDE = LowRank(1 / 4), Width(1 / 2)


def test_one_ratio_is_the_core_and_several_are_called_by_their_ratios() -> None:
    assert list(resolve_levels(LOW, None)) == ["core"]
    assert resolve_levels([LOW, Depth("h", keep=1)], None) == {"core": (LOW, Depth("h", keep=1))}
    ratios = (1 / 32, 0.3, 1 / 3, 0.35, 2 / 3, 1.0)
    assert list(resolve_levels(LowRank(ratios), None)) == ["1/32", "3/10", "1/3", "7/20", "2/3", "1"]
    assert list(resolve_levels(Depth("h", keep=(1, 2, 3)), None)) == ["1", "2", "3"]


def test_specs_with_as_many_ratios_go_together_and_one_ratio_goes_with_all() -> None:
    make = LayerSum("head", nn.Identity)
    levels = resolve_levels([make, LowRank((1 / 8, 1 / 4)), Depth("h", keep=(1, 2))], None)
    assert levels == {
        "1/8": (make, LowRank(1 / 8), Depth("h", keep=1)),
        "1/4": (make, LowRank(1 / 4), Depth("h", keep=2)),
    }


def test_named_levels_keep_their_order_and_take_one_spec_or_several() -> None:
    assert resolve_levels(None, {"small": LOW, "medium": [WIDE]}) == {"small": (LOW,), "medium": (WIDE,)}
    assert list(resolve_levels(None, {"b": LOW, "a": LOW})) == ["b", "a"]


BAD_LEVELS: list[tuple[Any, Any, type[Exception], str]] = [
    ([], None, ValueError, "list of specs is empty"),
    (LOW, {"small": LOW}, ValueError, "either a spec or levels"),
    ([LowRank((0.1, 0.2)), Width((0.1, 0.2, 0.3))], None, ValueError, r"same number; got \[2, 3\]"),
    (LowRank((0.5, 0.5)), None, ValueError, "the same name: 1/2, 1/2"),
    (None, {"full": LOW}, ValueError, "'full' is the whole network"),
    (None, {"small": []}, ValueError, "'small' has no spec"),
    (None, {"small": LowRank((0.1, 0.2))}, ValueError, "'small' has a spec with several ratios"),
    (None, {"a.b": LOW}, ValueError, r"cannot be called 'a\.b'"),
    (None, {"": LOW}, ValueError, "cannot be called ''"),
    (None, {"forward": LOW}, ValueError, "cannot be called 'forward'"),
    (0.5, None, TypeError, "LowRank, Width, Depth or LayerSum, got a float"),
    ("*.fc1", None, TypeError, "LowRank, Width, Depth or LayerSum"),
    (None, {"small": [LOW, 1 / 8]}, TypeError, "LowRank, Width, Depth or LayerSum, got a float"),
]


@pytest.mark.parametrize(("spec", "levels", "error", "message"), BAD_LEVELS)
def test_what_is_no_level_is_refused(spec: Any, levels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve_levels(spec, levels)


@pytest.mark.parametrize("name", ["axis", "switch", "levels", "training", "running_mean", "plain", "1"])
def test_a_level_may_have_any_name_that_is_not_refused_by_name(name: str) -> None:
    """BatchNorm keeps one module for each level, under the level's name."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    try:
        nested = nest(model, levels={name: Width(1 / 2)})
    except ValueError as error:
        assert f"cannot be called {name!r}" in str(error)
    else:
        assert nested.levels == (name, "full")
