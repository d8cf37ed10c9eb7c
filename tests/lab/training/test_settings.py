"""The settings that all recipes share, and what a recipe consists of."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from partialsgd.lab import recipes
from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.training.settings import parse_ratio
from partialsgd.lab.training.settings_files import groups

RECIPES = (Translation, Images)
COUNTS = ("epochs", "accumulate", "evaluate_every", "checkpoint_every", "keep")
OPTIONAL = ("max_steps", "threads", "measure_every")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", [*COUNTS, *OPTIONAL])
def test_a_count_is_a_whole_number_from_1(recipe: type[Any], name: str) -> None:
    for value in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match=rf"^{name} must be a whole number of at least 1, got {value}$"):
            recipe(**{name: value})
    assert getattr(recipe(**{name: 1}), name) == 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_setting_is_in_one_group_and_is_given_by_name(recipe: type[Any]) -> None:
    grouped = [field.name for group in groups(recipe) for field in fields(group)]
    assert sorted(grouped) == sorted({field.name for field in fields(recipe)})
    with pytest.raises(TypeError):
        recipe("runs/a")
    unset = recipe(**dict.fromkeys(OPTIONAL))
    assert all(getattr(unset, name) is None for name in OPTIONAL)


@pytest.mark.parametrize(("text", "value"), [("1/32", 0.03125), ("0.03125", 0.03125), ("1", 1.0), ("2e-1", 0.2)])
def test_a_ratio_is_written_either_way(text: str, value: float) -> None:
    assert parse_ratio(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, r"ratio must be in \(0, 1\], got") for text in ("0", "-1/2", "3/2", "1.01")),
        *((text, "ratio must be written like 1/32 or 0.03125, got") for text in ("half", "1/0", "", "1/2/3", "nan")),
    ],
)
def test_another_ratio_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message} '{text}'"):
        parse_ratio(text)


def test_the_settings_of_all_recipes_need_no_torch() -> None:
    code = "import sys, partialsgd.lab.recipes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_shared_code_does_not_name_a_recipe() -> None:
    """A new recipe is a folder and one line in recipes/__init__.py."""
    lab = Path(str(recipes.__file__)).parents[1]
    shared = [file for folder in ("cli", "training", "runs") for file in (lab / folder).glob("*.py")]
    for file in shared:
        source = file.read_text(encoding="utf-8")
        for name in recipes.RECIPES:
            assert f'"{name}"' not in source and f"recipes.{name}" not in source, (file.name, name)
