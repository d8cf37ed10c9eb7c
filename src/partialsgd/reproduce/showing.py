"""What a reproduction shows while it trains: how many runs are done, and how far the present ones are."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from partialsgd.recipes.progress import say
from partialsgd.reproduce.folder import Folder
from partialsgd.reproduce.jobs import Job

_TAIL = 4096  # bytes at the end of a metrics file, more than its last line
_SECONDS = 1.0  # between looks at the files


@final
class Display:
    """A bar for each run in a terminal, a line at its begin and end elsewhere."""

    def __init__(self, console: Console, folder: Folder) -> None:
        self.console = console
        self._folder = folder
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._bars: dict[Path, tuple[TaskID, Job]] = {}
        self._began: dict[Path, float] = {}
        self._looked = 0.0

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def began(self, job: Job) -> None:
        self._began[job.path] = time.monotonic()
        again = "goes on" if (job.path / "config.json").exists() else "begins"
        if self.console.is_terminal:
            self._bars[job.path] = self._progress.add_task(job.label, total=1.0, told=again), job
        else:
            say(self.console, f"{job.label} {again}")

    def ended(self, job: Job) -> None:
        minutes = (time.monotonic() - self._began[job.path]) / 60
        if job.path in self._bars:
            self._progress.remove_task(self._bars.pop(job.path)[0])
        ended = self._folder.ended(job.path)
        failed = ", it has diverged" if ended is not None and ended.summary is None else ""
        say(self.console, f"{job.label} is done, {minutes:.1f} minutes{failed}")

    def refresh(self) -> None:
        if time.monotonic() - self._looked < _SECONDS:
            return
        self._looked = time.monotonic()
        for bar, job in self._bars.values():
            epoch = epoch_of(job.path / "metrics.jsonl")
            told = f"epoch {epoch:.1f} of {job.settings.epochs}"
            self._progress.update(bar, completed=epoch / job.settings.epochs, told=told)


def epoch_of(metrics: Path) -> float:
    """How far a training is, by its last whole line."""
    if not metrics.exists():
        return 0.0
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - _TAIL))
        lines = [line for line in file.read().split(b"\n")[:-1] if line.startswith(b"{") and line.endswith(b"}")]
    return float(json.loads(lines[-1]).get("epoch", 0.0)) if lines else 0.0
