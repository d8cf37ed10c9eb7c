"""Commands that show what came out."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.training import settings_files as files
from partialsgd.lab.training.errors import WrongCall


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """Make one HTML page of a run, or of several: levels, costs, curves, criteria, outputs, configuration.

    $ partialsgd report runs/r --open           # runs/r/report.html
    $ partialsgd report runs/comparison/*-seed0 --to comparison.html

    The page is one file that needs no network. A run that is not at its end is shown as far as it is.
    """

    run: tuple[Path, ...]
    """The run directories."""
    to: Path | None = None
    """The file to write; by default report.html in the first run."""
    open: bool = False
    """Show it in the browser."""

    def __post_init__(self) -> None:
        if not self.run:
            raise WrongCall("RUN: give at least one run directory")

    def __call__(self) -> None:
        from partialsgd.lab.page import write_page

        try:
            page = write_page(self.run, self.to or self.run[0] / "report.html", default_settings=usual)
        except (FileNotFoundError, IsADirectoryError) as error:
            raise WrongCall(str(error)) from error
        print(page)
        if self.open and not webbrowser.open(page.resolve().as_uri()):
            print(f"no browser was found; open {page} in one")


def usual(recipe: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the settings of a recipe are if only the preset is said; nothing of a recipe that is not known here."""
    if recipe not in RECIPES:
        return {}
    known = files.presets(recipe)
    base = known.get(str(settings.get("preset")), next(iter(known.values())))
    return asdict(base)
