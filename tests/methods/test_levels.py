"""Settings by level: taken, or refused by name."""

from __future__ import annotations

import pytest

from partialsgd import Context
from partialsgd.methods._shared.levels import require_levels, require_numbers, scaled
from partialsgd.parameters import Parameters
from tests.families import family


def test_numbers_belong_to_levels_that_there_are_and_are_not_negative() -> None:
    assert require_numbers(None, "lr") == {} and require_numbers({"core": 0}, "lr") == {"core": 0}
    with pytest.raises(ValueError, match="lr: there is no level 'tiny'; there are 'core', 'full'"):
        require_levels(family(), {"tiny": 1.0}, "lr")
    for wrong in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="lr of 'core' must not be negative"):
            require_numbers({"core": wrong}, "lr")


def test_a_level_that_is_not_named_steps_as_it_is() -> None:
    rule = scaled({"core": 0.5})
    parameters = Parameters(family())
    assert [rule(Context(0, 0, parameters, {}, level=level)) for level in ("core", "full", None)] == [0.5, 1.0, 1.0]
