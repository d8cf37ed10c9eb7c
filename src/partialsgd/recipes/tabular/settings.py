"""The settings of the tabular recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from partialsgd.recipes.settings import Settings


@final
@dataclass(frozen=True, kw_only=True)
class Tabular(Settings):
    recipe: ClassVar[str] = "tabular"
