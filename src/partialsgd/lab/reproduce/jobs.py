"""A run of a recipe as a job, and the loop that runs jobs, some side by side, until nothing is ready."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from partialsgd._util import files
from partialsgd.lab.recipes import settings_of
from partialsgd.lab.reproduce.run_folder import require_same_settings
from partialsgd.lab.reproduce.workers import Job, WorkerPool
from partialsgd.lab.runs.run import FAILED, Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import Stopped, WrongCall
from partialsgd.lab.training.progress import say
from partialsgd.lab.training.settings import Settings

_POLL = 0.5  # seconds; a signal that another thread receives is handled between two waits
_TAIL = 1 << 18  # bytes at the end of a metrics file, more than a line has

Finished: TypeAlias = Callable[[Job, Any], None]


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

    def progress(self) -> tuple[float, str]:
        """The share of the training that is done, and the last step in words; epochs or steps end it."""
        last: Mapping[str, Any] = {}
        if (metrics := self.path / "metrics.jsonl").exists():
            with metrics.open("rb") as file:
                file.seek(max(0, metrics.stat().st_size - _TAIL))
                lines = file.read().split(b"\n")[:-1]  # the last line may be half written
            last = json.loads(lines[-1]) if lines else last
        epoch, steps = last.get("epoch", 0.0), last.get("t", -1) + 1
        shares = [(epoch / self.settings.epochs, f"epoch {epoch:.1f} of {self.settings.epochs}")]
        if total := self.settings.max_steps:
            shares.append((steps / total, f"step {steps:,} of {total:,}"))
        return max(shares)


def train_run(recipe: str, settings: Mapping[str, Any]) -> None:
    """Make the run in `settings["out"]`, or go on with it. A run that diverges has ended, and says so in a file."""
    train_or_resume(settings_of(recipe, settings))


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


def run_here(ready: Callable[[], Sequence[RunJob]], console: Console) -> None:
    """Make all runs that `ready` gives in this process: errors are raised, and torchrun's ranks stay together."""
    progress = JobProgress(console, is_live=False)
    while jobs := ready():
        progress.started(jobs[0])
        train_run(**jobs[0].arguments)
        progress.ended(jobs[0], None)


def run_jobs(
    ready: Callable[[], Sequence[Job]],
    workers: WorkerPool,
    console: Console,
    finished: Finished = lambda job, result: None,
) -> list[str]:
    """Run all jobs that `ready` gives now and later, and return the failures as "label: message".

    `finished` gets every result, and may raise to end it all. A failed job is not tried again, and jobs that need it
    never become ready; all others go on.
    """
    try:
        with workers, JobProgress(console, is_live=True) as progress:
            try:
                return _run(ready, workers, progress, finished)
            except KeyboardInterrupt:
                say(console, "Stopping when the state is saved; once more to stop at once, without saving.")
                raise
    except KeyboardInterrupt as error:
        raise Stopped("stopped; the same call goes on") from error


def _run(
    ready: Callable[[], Sequence[Job]], workers: WorkerPool, progress: JobProgress, finished: Finished
) -> list[str]:
    failures: dict[str, str] = {}
    is_first = True
    while True:
        taken = {job.label for job in workers.busy.values()} | failures.keys()
        waiting = [job for job in ready() if job.label not in taken]
        for job in waiting[: workers.size - len(workers.busy)]:
            progress.started(job)
            workers.start(job)
        if not workers.busy:
            return list(failures.values())
        progress.update(workers.busy.values(), len({job.label for job in waiting} | taken - failures.keys()))
        while (outcome := workers.wait(_POLL)) is None:
            progress.update(workers.busy.values())
        job, result = outcome
        if isinstance(result, WrongCall) and is_first:
            raise WrongCall(f"{job.label}: {result}")  # the data are wrong, and so they are for every job
        is_first = False
        progress.ended(job, result)
        if isinstance(result, Exception):
            failures[job.label] = f"{job.label}: {result}"
        else:
            finished(job, result)


@final
class JobProgress:
    """A line when a job starts and when it ends; in a terminal also a bar for all jobs and one for each present run."""

    def __init__(self, console: Console, *, is_live: bool) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        options: Any = {"transient": True, "disable": not (is_live and console.is_terminal)}
        self._bars = Progress(*columns, TimeElapsedColumn(), console=console, **options)
        self._all = self._bars.add_task("all runs", total=None, note="")
        self._done = 0
        self._present: dict[str, tuple[float, TaskID]] = {}

    def __enter__(self) -> JobProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def started(self, job: Job) -> None:
        self._present[job.label] = time.monotonic(), self._bars.add_task(job.label, total=1.0, note="")
        say(self._console, f"{job.label} {'goes on' if isinstance(job, RunJob) and job.is_started else 'begins'}")

    def update(self, busy: Iterable[Job], left: int | None = None) -> None:
        """Show how far the present runs are; `left` counts the jobs that are known by now and not done."""
        if left is not None:
            total = self._done + left
            self._bars.update(self._all, total=total, completed=self._done, note=f"{self._done} of {total} done")
        for job in busy:
            if isinstance(job, RunJob) and not self._bars.disable:
                share, note = job.progress()
                self._bars.update(self._present[job.label][1], completed=share, note=note)

    def ended(self, job: Job, result: Any) -> None:
        began, bar = self._present.pop(job.label)
        self._bars.remove_task(bar)
        self._done += 1
        minutes = (time.monotonic() - began) / 60
        diverged = ", it has diverged" if isinstance(job, RunJob) and job.has_diverged else ""
        outcome = "has failed" if isinstance(result, Exception) else "is done"
        error = f": {result}" if isinstance(result, Exception) else diverged
        say(self._console, f"{job.label} {outcome}, {minutes:.1f} minutes{error}")
