"""Train what is missing, and lay the outcome beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from partialsgd.export import files
from partialsgd.lab.reproduce import elsewhere, experiment, figures, jobs, layout, numbers, running, same, tables
from partialsgd.lab.reproduce.folder import Folder
from partialsgd.lab.reproduce.plans import Asked, Experiment, default_out
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.progress import say
from partialsgd.logging.figures import require_matplotlib


def reproduce(
    name: str,
    asked: Asked,
    *,
    rows: Sequence[str] = (),
    at_once: int = 1,
    out: Path | None = None,
    train: bool = True,
    console: Console | None = None,
) -> tuple[numbers.Found, list[str]]:
    """Make the runs that are missing, then the table and the figures of all that are there; and what has failed."""
    told = console or Console(stderr=True)
    plan = experiment(name, asked)
    folder = Folder(out or default_out(name, asked))
    if folder.path.exists() and not folder.path.is_dir():
        raise WrongCall(f"--out {folder.path} is a file; give the directory for the runs")
    jobs.asked_for(plan, folder, rows)  # names that there are not are refused now
    require_matplotlib()  # not after hours of training
    if train:
        _require_data(asked)
    same.require_all(plan, folder)
    failures: list[str] = []
    if train:
        failures = _train(plan, folder, rows, at_once, told)
        same.require_all(plan, folder)  # the data may have been changed meanwhile
    else:
        _require_runs(plan, folder)
        if rows:
            say(told, "The table is of all that is there: --rows says what is trained, and here nothing is.")
    found = numbers.found(plan, folder)
    for path in write(plan, folder, found):
        say(told, f"{path}")
    return found, failures


def _require_data(asked: Asked) -> None:
    """Before a process is started."""
    if asked.data is None and asked.scale == "paper":
        raise WrongCall("--scale paper is for the paper's data: give the folder with --data")
    if asked.data is not None and not Path(asked.data).exists():
        raise WrongCall(f"--data {asked.data} does not exist")


def _require_runs(plan: Experiment, folder: Folder) -> None:
    """The runs of another experiment make a table of blanks."""
    rows = {row.name for row in plan.rows(folder)} | set(elsewhere.named(folder))
    if not any(path.parent.parent.name in rows for path in folder.path.glob("*/*/*/summary.json")):
        raise WrongCall(f"{folder.path} has no finished run of {plan.name}; without --show they are made there")


def _train(plan: Experiment, folder: Folder, rows: Sequence[str], at_once: int, told: Console) -> list[str]:
    folder.path.mkdir(parents=True, exist_ok=True)
    with Run(folder.path).locked():  # two would train the same runs
        if left := len(jobs.ready(plan, folder, rows)):
            say(told, f"{plan.title}: {left} runs can start now, in {folder.path}; stop it at any time.")
        failures = running.run(plan, folder, rows, at_once=at_once, console=told)
    for line in jobs.waiting(plan, folder, rows):
        say(told, line)
    return failures


def show(found: numbers.Found, console: Console) -> None:
    for table in tables.tables(found):
        console.print(layout.rich_table(table))
    for text in (tables.in_words(found), tables.choices(found), tables.made_with(found)):
        console.print(text, highlight=False, markup=False)


def write(plan: Experiment, folder: Folder, found: numbers.Found) -> list[Path]:
    """NAME.md, NAME.csv, NAME.json and the figures, NAME-size.png and so on."""
    markdown, csv, json = (f"{plan.name}.{kind}" for kind in ("md", "csv", "json"))
    with files.staged(folder.path) as stage:
        (stage / markdown).write_text(tables.markdown(found), encoding="utf-8")
        (stage / csv).write_text(tables.as_csv(found), encoding="utf-8")
        files.write_json(stage / json, found)
    drawn = figures.drawn(plan, folder, found)
    images = [figures.write(figure, folder.path, f"{plan.name}-{name}") for name, figure in drawn]
    return [*(folder.path / name for name in (markdown, csv, json)), *(path for each in images for path in each)]
