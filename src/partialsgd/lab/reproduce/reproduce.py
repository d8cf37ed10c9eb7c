"""`partialsgd reproduce`: train the runs that are missing, and set the results beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from partialsgd._util import files
from partialsgd.lab.reproduce import Request, figures, make_experiment, numbers, schedule, tables
from partialsgd.lab.reproduce.experiment import Experiment
from partialsgd.lab.reproduce.jobs import run_jobs
from partialsgd.lab.reproduce.numbers import Numbers
from partialsgd.lab.reproduce.run_folder import RunFolder
from partialsgd.lab.reproduce.workers import Job, WorkerPool
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.progress import say
from partialsgd.logging.figures import require_matplotlib


def reproduce(
    name: str,
    request: Request,
    *,
    rows: Sequence[str] = (),
    at_once: int = 1,
    out: Path | None = None,
    train: bool = True,
    console: Console | None = None,
) -> tuple[Numbers, list[str]]:
    """Train the missing runs, write table and figures of all finished ones; return the numbers and the failures."""
    console = console or Console(stderr=True)
    plan = make_experiment(name, request)
    folder = RunFolder(out or request.default_out(name), plan)
    if folder.path.exists() and not folder.path.is_dir():
        raise WrongCall(f"--out {folder.path} is a file; give the directory for the runs")
    schedule.requested_rows(plan, folder, rows)  # raises for unknown names
    require_matplotlib()  # not after hours of training
    if train and request.data is None and request.scale == "paper":
        raise WrongCall("--scale paper is for the paper's data: give the folder with --data")
    if train and request.data is not None and not Path(request.data).exists():
        raise WrongCall(f"--data {request.data} does not exist")
    schedule.require_all(plan, folder)
    failures: list[str] = []
    if train:
        failures = _train(plan, folder, rows, at_once, console)
        schedule.require_all(plan, folder)  # the data may have changed meanwhile
    else:
        _require_runs(plan, folder)
        if rows:
            hint = "--rows selects what is trained, and --show trains nothing."
            say(console, f"The table shows all finished runs: {hint}")
    collected = numbers.collect(plan, folder)
    for path in write(plan, folder, collected):
        say(console, f"{path}")
    return collected, failures


def _require_runs(plan: Experiment, folder: RunFolder) -> None:
    """Raise if no run belongs to the experiment: its table would be empty."""
    rows = {row.name for row in plan.rows(folder)} | set(schedule.stored_other_cells(folder))
    if not any(path.parent.parent.name in rows for path in folder.path.glob("*/*/*/summary.json")):
        raise WrongCall(f"{folder.path} has no finished run of {plan.name}; without --show they are made there")


def _train(plan: Experiment, folder: RunFolder, rows: Sequence[str], at_once: int, console: Console) -> list[str]:
    is_checked = False

    def check_data_once(job: Job, result: Any) -> None:
        """The first finished run has the hash of the data; it must agree with the runs that were there."""
        nonlocal is_checked
        if not is_checked:
            schedule.require_all(plan, folder)
        is_checked = True

    folder.path.mkdir(parents=True, exist_ok=True)
    with Run(folder.path).locked():  # a second process would train the same runs
        if left := len(schedule.ready(plan, folder, rows)):
            say(console, f"{plan.title}: {left} runs can start now, in {folder.path}; stop it at any time.")
        workers = WorkerPool(at_once, folder.path / "logs")
        failures = run_jobs(lambda: schedule.ready(plan, folder, rows), workers, console, check_data_once)
    for line in schedule.waiting(plan, folder, rows):
        say(console, line)
    return failures


def show(collected: Numbers, console: Console) -> None:
    for table in tables.tables(collected):
        console.print(tables.to_rich(table))
    for text in (tables.bullets(collected), tables.choices(collected), tables.versions(collected)):
        console.print(text, highlight=False, markup=False)


def write(plan: Experiment, folder: RunFolder, collected: Numbers) -> list[Path]:
    """Write NAME.md, NAME.json and the figures, like NAME-size.png."""
    markdown, json = (folder.path / f"{plan.name}.{kind}" for kind in ("md", "json"))
    files.write_text(markdown, tables.markdown(collected))
    files.write_json(json, collected)
    drawn = figures.draw(plan, folder, collected)
    images = [figures.write(figure, folder.path, f"{plan.name}-{name}") for name, figure in drawn]
    return [markdown, json, *(path for each in images for path in each)]
