"""The loop that runs an experiment: start what is ready, some jobs side by side, until nothing is ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

from rich.console import Console

from partialsgd.lab.reproduce.run_job import RunJob
from partialsgd.lab.reproduce.worker_pool import Job, ThisProcess, WorkerPool
from partialsgd.lab.training.errors import Stopped, WrongCall
from partialsgd.lab.training.progress import say

_POLL = 0.5  # seconds; a signal that another thread receives is handled between two waits


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
        with workers:
            try:
                return _run(ready, workers, JobProgress(console), finished)
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
        while (outcome := workers.wait(_POLL)) is None:
            pass
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
    """Prints a line when a job starts and when it ends. How far a run is stands in its worker's log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: dict[str, float] = {}

    def started(self, job: Job) -> None:
        self._started[job.label] = time.monotonic()
        say(self._console, f"{job.label} {'goes on' if isinstance(job, RunJob) and job.is_started else 'begins'}")

    def ended(self, job: Job, result: Any) -> None:
        minutes = (time.monotonic() - self._started[job.label]) / 60
        diverged = ", it has diverged" if isinstance(job, RunJob) and job.has_diverged else ""
        outcome = "has failed" if isinstance(result, Exception) else "is done"
        error = f": {result}" if isinstance(result, Exception) else diverged
        say(self._console, f"{job.label} {outcome}, {minutes:.1f} minutes{error}")
