"""The chain of levels: names, order, and what is no chain."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from partialsgd import Depth, LayerSum, LowRank, Width, nest
from partialsgd.nested.specs import resolve_levels
from tests.nested.checks import untouched

LOW, WIDE = LowRank(1 / 4), Width(1 / 2)


def test_one_ratio_is_the_core_and_several_are_called_by_their_ratios() -> None:
    assert list(resolve_levels(LOW, None)) == ["core"]
    assert resolve_levels([LOW, Depth("h", keep=1)], None) == {"core": (LOW, Depth("h", keep=1))}
    assert list(resolve_levels(LowRank((1 / 32, 1 / 8)), None)) == ["1/32", "1/8"]
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


def test_no_levels_are_a_family_of_one() -> None:
    assert resolve_levels(None, {}) == {}


BAD: list[tuple[Any, Any, type[Exception], str]] = [
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


@pytest.mark.parametrize(("spec", "levels", "error", "message"), BAD)
def test_what_is_no_level_is_refused(spec: Any, levels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resolve_levels(spec, levels)


def test_an_empty_list_of_specs_says_nothing_of_what_is_inside() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with untouched(model), pytest.raises(ValueError, match="list of specs is empty"):
        nest(model, [])


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
