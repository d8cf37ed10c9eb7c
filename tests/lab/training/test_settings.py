"""What every recipe can be told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.tabular.settings import Tabular
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.training.settings import Settings, ratio_of, require_at_least

RECIPES = (Translation, Images, Tabular)
COUNTS = ("epochs", "accumulate", "evaluate_every", "checkpoint_every", "keep")
MAYBE = ("max_steps", "threads", "measure_every")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", [*COUNTS, *MAYBE])
def test_a_count_is_a_whole_number_from_1(recipe: type[Any], name: str) -> None:
    for value in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=rf"^{name} must be a whole number, at least 1; got {value}$"):
            recipe(**{name: value})
    assert getattr(recipe(**{name: 1}), name) == 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_may_be_left_open_is_none(recipe: type[Settings]) -> None:
    given: Any = dict.fromkeys(MAYBE)
    assert all(getattr(recipe(**given), name) is None for name in MAYBE)


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_has_what_all_share_and_only_by_name(recipe: type[Any]) -> None:
    assert {field.name for field in fields(Settings)} <= {field.name for field in fields(recipe)}
    with pytest.raises(TypeError):
        recipe("runs/a")


def test_the_least_may_be_anything() -> None:
    require_at_least("warm_up", 0, 0)
    with pytest.raises(ValueError, match="vocabulary must be a whole number, at least 259; got 258"):
        require_at_least("vocabulary", 258, 259)


@pytest.mark.parametrize(("text", "value"), [("1/32", 0.03125), ("0.03125", 0.03125), ("1", 1.0), ("2e-1", 0.2)])
def test_a_ratio_is_written_either_way(text: str, value: float) -> None:
    assert ratio_of(text) == value


@pytest.mark.parametrize("text", ["0", "-1/2", "3/2", "1.01"])
def test_a_ratio_is_a_share(text: str) -> None:
    with pytest.raises(ValueError, match=rf"a ratio must be in \(0, 1\], got '{text}'"):
        ratio_of(text)


@pytest.mark.parametrize("text", ["half", "1/0", "", "1/2/3", "nan"])
def test_a_ratio_that_cannot_be_read_is_shown_how_it_is_written(text: str) -> None:
    with pytest.raises(ValueError, match=f"a ratio is written 1/32 or 0.03125; got '{text}'"):
        ratio_of(text)


def test_the_settings_of_all_recipes_need_no_torch() -> None:
    code = "import sys, partialsgd.lab.recipes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
