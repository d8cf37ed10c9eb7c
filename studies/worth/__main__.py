"""One joint run, or one run for each network, for the same total FLOPs: trainings in order of value.

    python -m studies.worth --data multi30k.de-en --images cifar-10-batches-bin --out runs/worth
    python -m studies.write

The first command trains what is missing, one run after the other (`--jobs 2`: two side by side), stores each result in
studies/results as soon as it is there, and may be stopped or killed at any moment: the same call goes on where it was,
to the bit; in an empty directory it goes on from the stored results. `--list` shows what comes next. The second writes
the tables of docs/which_size.md. With `--latencies` the first times the networks instead, for one of these tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from partialsgd.lab.reproduce import schedule
from partialsgd.lab.reproduce.jobs import RunJob, run_jobs
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.reproduce.workers import WorkerPool
from partialsgd.lab.runs.run import Run
from studies.results import RESULTS
from studies.worth import sizes, store
from studies.worth.plans import QUEUE, Plan, plans
from studies.worth.regime import Regime


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    known = plans(*(None if path is None else str(path.resolve()) for path in (options.data, options.images)))
    if not known:
        parser.error("give --data, --images or both")
    if options.list:
        for job in ready(known, options.out):
            print(job.label)
        return
    if options.latencies:
        sizes.measure(known, options.results)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)

    def finished(job: Any, result: Any) -> None:
        plan = known[job.label.partition(":")[0]]
        store.write(plan, options.out / plan.name, options.results)

    with Run(options.out).locked():  # a second process would train the same runs
        for plan in known.values():
            store.bring_back(plan, options.out / plan.name, options.results)
        pool = WorkerPool(options.jobs, options.out / "logs")
        failures = run_jobs(lambda: ready(known, options.out), pool, console, finished)
    if failures:
        raise SystemExit("\n".join(failures))


def ready(known: dict[str, Plan | Regime], out: Path) -> list[RunJob]:
    """The runs that can be trained now, in order of value."""
    jobs: dict[str, RunJob] = {}
    for wanted in QUEUE:
        if wanted.plan in known:
            experiment = known[wanted.plan].experiment()
            for job in schedule.ready(experiment, RunFolder(out / wanted.plan, experiment), wanted.rows):
                if job.settings.seed < wanted.seeds:
                    label = f"{wanted.plan}: {job.label}"
                    jobs.setdefault(label, replace(job, label=label))
    return list(jobs.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.worth", description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder with Multi30k, German and English")
    parser.add_argument("--images", type=Path, help="the folder with the binary version of CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("runs") / "worth", help="the directory of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once, one thread each")
    parser.add_argument("--list", action="store_true", help="show the runs that come next, and train nothing")
    parser.add_argument("--latencies", action="store_true", help="time the networks, in turns, and train nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the directory that results are stored in")
    return parser


if __name__ == "__main__":
    main()
