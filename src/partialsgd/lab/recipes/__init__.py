"""The recipes: complete trainings that `partialsgd train` runs. A recipe is one folder and one line in `RECIPES`.

The folder has `settings.py`, whose settings class imports no torch and may come with `PRESETS`; `task.py`, whose
`build(settings)` returns the `Task` that the loop trains; and perhaps `commands.py` with commands of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings

if TYPE_CHECKING:
    from partialsgd.lab.training.task import Task

RECIPES: dict[str, type[Settings]] = {kind.recipe: kind for kind in (Translation, Images)}
"""Settings classes by recipe name. The first recipe is the default."""

_REMOVED = {"tabular": "examples/wide_and_deep.py"}
"""Former recipes, with the example that shows how to do without them."""

__all__ = ["RECIPES", "build", "commands", "preset_values", "presets", "require_recipe", "settings_of"]


def require_recipe(name: object) -> str:
    """Return the name of a recipe, or refuse it with the names that exist."""
    if isinstance(name, str) and name in RECIPES:
        return name
    if isinstance(name, str) and name in _REMOVED:
        raise WrongCall(f"the recipe {name!r} was removed; {_REMOVED[name]} shows the same training in 60 lines")
    raise WrongCall(f"there is no recipe {name!r}; the recipes are {', '.join(RECIPES)}")


def build(settings: Settings) -> Task:
    """Read the data and make the model, with fresh weights."""
    task: Task = _module(settings.recipe, "task").build(settings)
    return task


def presets(recipe: str) -> Mapping[str, Settings]:
    """The presets of a recipe by name, the default first. A recipe without presets has one, named ""."""
    named: Mapping[str, Settings] | None = getattr(_module(recipe, "settings"), "PRESETS", None)
    return named or {"": RECIPES[recipe]()}


def settings_of(recipe: str, values: Mapping[str, Any]) -> Settings:
    """Make the settings of a recipe from a JSON object, in which tuples are lists."""
    tuples: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return RECIPES[recipe](**tuples)


def preset_values(recipe: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the preset that a run started from; empty for a recipe that does not exist."""
    if recipe not in RECIPES:
        return {}
    named = presets(recipe)
    return asdict(named.get(str(settings.get("preset")), next(iter(named.values()))))


def commands() -> dict[str, type[Any]]:
    """The commands that recipes add to the command line, such as `partialsgd translate`."""
    by_name: dict[str, type[Any]] = {}
    for recipe in RECIPES:
        if find_spec(f"{__name__}.{recipe}.commands") is not None:
            by_name |= _module(recipe, "commands").COMMANDS
    return by_name


def _module(recipe: str, name: str) -> Any:
    return import_module(f"{__name__}.{recipe}.{name}")
