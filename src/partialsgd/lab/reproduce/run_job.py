"""A run of a recipe as a job: made, or resumed where it stopped, in whatever process works on it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from partialsgd._util import files
from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.reproduce.run_folder import require_same_settings
from partialsgd.lab.runs.metrics import FAILED
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.settings import Settings


@final
@dataclass(frozen=True)
class RunJob:
    """A run to make, or to go on with."""

    label: str
    path: Path
    settings: Settings
    call: str = f"{__name__}:train_run"

    @property
    def arguments(self) -> dict[str, Any]:
        return {"recipe": self.settings.recipe, "settings": asdict(replace(self.settings, out=str(self.path)))}

    @property
    def is_started(self) -> bool:
        return (self.path / "config.json").exists()

    @property
    def has_diverged(self) -> bool:
        return (self.path / FAILED).exists()


def train_run(recipe: str, settings: Mapping[str, Any]) -> None:
    """Make the run in `settings["out"]`, or go on with it. A run that diverges has ended, and says so in a file."""
    values: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    train_or_resume(RECIPES[recipe](**values))


def train_or_resume(settings: Settings) -> None:
    assert settings.out is not None  # a job names its directory
    run = Run(Path(settings.out))
    try:
        if not (run.path / "config.json").exists():
            shutil.rmtree(run.path / files.STAGE, ignore_errors=True)  # left by a kill before the first file
            loop.train(settings, show=False)
            return
        require_same_settings(run.path, settings)
        _wait_for_lock(run)
        loop.resume(run, places=settings, show=False)
    except FloatingPointError as error:
        run.write_json(FAILED, {"error": str(error)})


def _wait_for_lock(run: Run) -> None:
    """Wait up to a minute: the process that trained the run before may still be saving."""
    for _ in range(60):
        try:
            with run.locked():
                return
        except RuntimeError:
            time.sleep(1.0)
