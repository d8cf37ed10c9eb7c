"""Train what an experiment lacks, some runs side by side, until nothing is ready."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from partialsgd.reproduce.crew import crew
from partialsgd.reproduce.folder import Folder
from partialsgd.reproduce.jobs import ready
from partialsgd.reproduce.plans import Experiment
from partialsgd.reproduce.showing import Display

_PAUSE = 0.5  # seconds between looks at how far the runs are


def run(experiment: Experiment, folder: Folder, wanted: Sequence[str], *, at_once: int, console: Console) -> None:
    """All that is wanted and not at its end. A failure ends it; what the others have done is kept."""
    with Display(console, folder) as shown, crew(at_once, folder.path / "logs") as working:
        while True:
            taken = {job.path for job in working.busy.values()}
            waiting = [job for job in ready(experiment, folder, wanted) if job.path not in taken]
            while waiting and working.has_room():
                job = waiting.pop(0)
                working.give(job)
                shown.began(job)
            if not working.busy:
                return
            while (done := working.done(_PAUSE)) is None:
                shown.refresh()
            shown.ended(done)
