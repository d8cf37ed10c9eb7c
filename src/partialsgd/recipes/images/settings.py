"""The settings of the images recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from partialsgd.recipes.settings import Settings


@final
@dataclass(frozen=True, kw_only=True)
class Images(Settings):
    recipe: ClassVar[str] = "images"
