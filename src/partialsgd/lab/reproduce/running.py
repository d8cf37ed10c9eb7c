"""Train what an experiment lacks, some runs side by side, until nothing is ready."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from partialsgd.lab.reproduce.crew import Crew, crew
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.jobs import ready
from partialsgd.lab.reproduce.plans import Experiment
from partialsgd.lab.reproduce.same import require_all
from partialsgd.lab.reproduce.showing import Display
from partialsgd.lab.training.errors import Stopped, WrongCall
from partialsgd.lab.training.progress import say

_PAUSE = 0.5  # seconds between looks at how far the runs are


def run(experiment: Experiment, folder: Folder, wanted: Sequence[str], *, at_once: int, console: Console) -> list[str]:
    """All that is wanted and not at its end; what has failed is returned, as "label: message"."""
    try:
        with Display(console, folder) as shown, crew(at_once, folder.path / "logs") as working:
            try:
                return _train(experiment, folder, wanted, working, shown)
            except KeyboardInterrupt:
                say(console, "Stopping when the state is saved; once more to stop at once, without saving.")
                raise
    except KeyboardInterrupt as error:
        raise Stopped("stopped; the same call goes on") from error


def _train(experiment: Experiment, folder: Folder, wanted: Sequence[str], working: Crew, shown: Display) -> list[str]:
    """What has failed is not tried again here, and what needs it never gets ready; all else goes on.

    A call that is wrong for the first job is wrong for all: the data are not what they should be.
    """
    failed: dict[Path, str] = {}
    is_first = True
    while True:
        taken = {job.path for job in working.busy.values()} | failed.keys()
        waiting = [job for job in ready(experiment, folder, wanted) if job.path not in taken]
        while waiting and working.has_room():
            job = waiting.pop(0)
            working.give(job)
            shown.began(job)
        if not working.busy:
            return list(failed.values())
        while (done := working.done(_PAUSE)) is None:
            shown.refresh()
        job, error = done
        if isinstance(error, WrongCall) and is_first:
            raise WrongCall(f"{job.label}: {error}")
        if is_first:
            require_all(experiment, folder)  # a run of other data than those that were there is told by its hash
        is_first = False
        shown.ended(job, error)
        if error is not None:
            failed[job.path] = f"{job.label}: {error}"
