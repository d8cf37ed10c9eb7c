"""The loop that runs an experiment: start what is ready, some jobs side by side, until nothing is ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from partialsgd.lab.reproduce.run_job import RunJob
from partialsgd.lab.reproduce.worker_pool import Job, ThisProcess, WorkerPool
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.progress import say
from partialsgd.lab.training.stopping import Stopped

_PAUSE = 0.5  # seconds between two looks at the progress of the runs


Workers: TypeAlias = WorkerPool | ThisProcess
Finished: TypeAlias = Callable[[Job, Any], None]


def run_jobs(
    ready: Callable[[], Sequence[Job]],
    workers: Workers,
    console: Console,
    finished: Finished = lambda job, result: None,
) -> list[str]:
    """Run all jobs that `ready` gives now and later, and return the failures as "label: message".

    `finished` gets every result, and may raise to end it all. A failed job is not tried again, and jobs that need it
    never become ready; all others go on.
    """
    try:
        with JobProgress(console, has_bars=isinstance(workers, WorkerPool)) as progress, workers:
            try:
                return _run(ready, workers, progress, finished)
            except KeyboardInterrupt:
                say(console, "Stopping when the state is saved; once more to stop at once, without saving.")
                raise
    except KeyboardInterrupt as error:
        raise Stopped("stopped; the same call goes on") from error


def _run(ready: Callable[[], Sequence[Job]], workers: Workers, progress: JobProgress, finished: Finished) -> list[str]:
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
        while (outcome := workers.wait(_PAUSE)) is None:
            progress.refresh()
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
    """A bar for each running job in a terminal; elsewhere a line when it starts and when it ends."""

    def __init__(self, console: Console, has_bars: bool = True) -> None:
        self.console = console
        self._has_bars = has_bars and console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
        self._bars = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._running: dict[str, tuple[Job, float, TaskID | None]] = {}
        self._refreshed = 0.0

    def __enter__(self) -> JobProgress:
        if self._has_bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def started(self, job: Job) -> None:
        words = "goes on" if isinstance(job, RunJob) and job.is_started else "begins"
        bar = self._bars.add_task(job.label, total=1.0, words=words) if self._has_bars else None
        self._running[job.label] = job, time.monotonic(), bar
        if bar is None:
            say(self.console, f"{job.label} {words}")

    def ended(self, job: Job, result: Any) -> None:
        _, since, bar = self._running.pop(job.label)
        if bar is not None:
            self._bars.remove_task(bar)
        minutes = (time.monotonic() - since) / 60
        if isinstance(result, Exception):
            say(self.console, f"{job.label} has failed, {minutes:.1f} minutes: {result}")
            return
        diverged = ", it has diverged" if isinstance(job, RunJob) and job.has_diverged else ""
        say(self.console, f"{job.label} is done, {minutes:.1f} minutes{diverged}")

    def refresh(self) -> None:
        if time.monotonic() - self._refreshed < 1.0:
            return
        self._refreshed = time.monotonic()
        for job, _, bar in self._running.values():
            if bar is not None and isinstance(job, RunJob):
                share, words = job.progress()
                self._bars.update(bar, completed=share, words=words)
