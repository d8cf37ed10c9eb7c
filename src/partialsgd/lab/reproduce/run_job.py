"""A run of a recipe as a job: made, or resumed where it stopped, in whatever process works on it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from partialsgd._util import files
from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.reproduce.run_folder import require_same_settings
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.settings import Settings
from partialsgd.logging import records

_TAIL = 1 << 16  # bytes at the end of a metrics file that hold its last line


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
        return (self.path / records.FAILED).exists()

    def progress(self) -> tuple[float, str]:
        """The trained share, by epochs or by steps, whichever end the run first; and the same in words."""
        last = _last_record(self.path / "metrics.jsonl")
        epoch, steps, settings = last.get("epoch", 0.0), last.get("t", -1) + 1, self.settings
        shares = [(epoch / settings.epochs, f"epoch {epoch:.1f} of {settings.epochs}")]
        if settings.max_steps is not None:
            shares.append((steps / settings.max_steps, f"step {steps:,} of {settings.max_steps:,}"))
        return max(shares)


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
        run.write(records.FAILED, {"error": str(error)})


def _wait_for_lock(run: Run) -> None:
    """Wait up to a minute: the process that trained the run before may still be saving."""
    for _ in range(60):
        try:
            with run.locked():
                return
        except RuntimeError:
            time.sleep(1.0)


def _last_record(metrics: Path) -> dict[str, Any]:
    """The last whole line of a metrics file; empty if it has none."""
    if not metrics.exists():
        return {}
    with metrics.open("rb") as file:
        file.seek(start := max(0, metrics.stat().st_size - _TAIL))
        lines = file.read().split(b"\n")[start > 0 : -1]  # both ends may be cut
    record: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return record
