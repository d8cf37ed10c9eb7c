"""`python -m studies.methods`: train every method of the registry on the same tasks, and store the results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from partialsgd.lab.training.errors import WrongCall
from studies import runs
from studies.methods.settings import SETTINGS
from studies.methods.tasks import TASKS
from studies.methods.train import FILE, Row, is_stored, stored
from studies.runs import StudyJob, is_selected


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    tasks = [task for task in TASKS.values() if options.data is not None or not task.needs_data]
    every = [(task, name, seed) for task in tasks for name in SETTINGS for seed in task.seeds]
    labels = {f"{task.name}/{name}/{seed}": (task, name, seed) for task, name, seed in every}
    selected = {label: each for label, each in labels.items() if is_selected(label, options.rows)}
    if not selected:
        parser.error(f"no row has {' or '.join(options.rows)} in its name; rows are like digits/sam/0")
    data = None if options.data is None else str(options.data)
    jobs = [
        StudyJob(label, "studies.methods.train:run", {"task": task.name, "method": name, "seed": seed, "data": data})
        for label, (task, name, seed) in selected.items()
    ]
    rows = stored(options.results)
    try:
        runs.run(
            jobs,
            is_done=lambda job: is_stored(rows, *selected[job.label]),
            store=lambda record: Row(**record).save(options.results),
            at_once=options.jobs,
        )
    except WrongCall as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.methods", description=__doc__)
    parser.add_argument("--rows", nargs="+", default=[], metavar="WORD", help="only rows like digits/sam/0 with a WORD")
    parser.add_argument("--data", type=Path, help="the folder with the binary version of CIFAR-10; without it, digits")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once, one thread each")
    parser.add_argument("--results", type=Path, default=FILE, help="the file that finished trainings are stored in")
    return parser


if __name__ == "__main__":
    main()
