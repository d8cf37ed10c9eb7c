"""Complete trainings: translation, images, tabular data.

Each recipe is a package with `settings.py`, a typed configuration that imports no torch, and `task.py`, whose
`build(settings)` makes what the loop trains.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from partialsgd.lab.recipes.images.settings import Images
from partialsgd.lab.recipes.tabular.settings import Tabular
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.training.settings import Settings

if TYPE_CHECKING:
    from partialsgd.lab.training.task import Task

RECIPES: dict[str, type[Settings]] = {kind.recipe: kind for kind in (Translation, Images, Tabular)}

__all__ = ["RECIPES", "build"]


def build(settings: Settings) -> Task:
    """What the settings describe, ready for the loop: weights drawn, data read."""
    task: Task = import_module(f"partialsgd.lab.recipes.{settings.recipe}.task").build(settings)
    return task
