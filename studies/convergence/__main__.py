"""`python -m studies.convergence --data FOLDER`: measure the criteria over whole trainings, and store the results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from partialsgd.lab.training.errors import WrongCall
from studies import runs
from studies.convergence.runs import FILE, Run, is_stored, stored
from studies.convergence.settings import SETTINGS
from studies.runs import StudyJob, is_selected


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.steps is not None and (options.steps < 2 or options.results == FILE):
        parser.error("--steps is to try it out: give 2 or more, and with --results another file")
    if options.data is None:
        parser.error("--data is missing: the folder with cifar-10-batches-bin and multi30k.de-en in it")
    every = {f"{name}/{seed}": (name, seed) for name, setting in SETTINGS.items() for seed in setting.task.seeds}
    selected = {label: each for label, each in every.items() if is_selected(label, options.runs)}
    if not selected:
        parser.error(f"no run has {' or '.join(options.runs)} in its name; runs are like dropout/0, period_64/2")
    shared = {"data": str(options.data), "steps": options.steps}
    jobs = [
        StudyJob(label, "studies.convergence.train:run", {"name": name, "seed": seed, **shared})
        for label, (name, seed) in selected.items()
    ]
    finished = stored(options.results)

    def is_done(job: StudyJob) -> bool:
        name, seed = selected[job.label]
        return is_stored(finished, name, seed, SETTINGS[name].with_steps(options.steps).settings)

    try:
        for task in {SETTINGS[name].task.name: SETTINGS[name].task for name, _ in selected.values()}.values():
            task.load(options.data / task.folder)  # raises if a file is missing
        runs.run(jobs, is_done=is_done, store=lambda record: Run(**record).save(options.results), at_once=options.jobs)
    except WrongCall as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.convergence", description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder with cifar-10-batches-bin and multi30k.de-en in it")
    parser.add_argument("--runs", nargs="+", default=[], metavar="WORD", help="only runs like dropout/0 with a WORD")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once, one thread each")
    parser.add_argument("--steps", type=int, help="instead of those of the task, to try it out; with --results")
    parser.add_argument("--results", type=Path, default=FILE, help="the file that finished runs are stored in")
    return parser


if __name__ == "__main__":
    main()
