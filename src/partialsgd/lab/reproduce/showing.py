"""What a reproduction shows while it trains: how many runs are done, and how far the present ones are."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.jobs import Job
from partialsgd.lab.training.progress import say
from partialsgd.lab.training.settings import Settings

_TAIL = 4096  # bytes at the end of a metrics file to begin with; measurements make longer lines
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

    def ended(self, job: Job, error: Exception | None = None) -> None:
        minutes = (time.monotonic() - self._began[job.path]) / 60
        if job.path in self._bars:
            self._progress.remove_task(self._bars.pop(job.path)[0])
        if error is not None:
            say(self.console, f"{job.label} has failed, {minutes:.1f} minutes: {error}")
            return
        ended = self._folder.ended(job.path)
        diverged = ", it has diverged" if ended is not None and ended.summary is None else ""
        say(self.console, f"{job.label} is done, {minutes:.1f} minutes{diverged}")

    def refresh(self) -> None:
        if time.monotonic() - self._looked < _SECONDS:
            return
        self._looked = time.monotonic()
        for bar, job in self._bars.values():
            share, told = how_far(last_line(job.path / "metrics.jsonl"), job.settings)
            self._progress.update(bar, completed=share, told=told)


def how_far(last: dict[str, Any], settings: Settings) -> tuple[float, str]:
    """The share of a training that is done, by its last step: epochs or steps, whichever end it first."""
    epoch, steps = last.get("epoch", 0.0), last.get("t", -1) + 1
    found = [(epoch / settings.epochs, f"epoch {epoch:.1f} of {settings.epochs}")]
    if settings.max_steps is not None:
        found.append((steps / settings.max_steps, f"step {steps:,} of {settings.max_steps:,}"))
    return max(found)


def last_line(metrics: Path) -> dict[str, Any]:
    """The last whole line of a metrics file, if it has one; sought from its end, for it may be long."""
    if not metrics.exists():
        return {}
    size, tail = metrics.stat().st_size, _TAIL
    with metrics.open("rb") as file:
        while True:
            begin = max(0, size - tail)
            file.seek(begin)
            lines = file.read(size - begin).split(b"\n")[begin > 0 : -1]  # both ends may be cut
            if lines or begin == 0:
                return json.loads(lines[-1]) if lines else {}
            tail *= 4
