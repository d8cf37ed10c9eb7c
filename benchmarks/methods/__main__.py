"""`python -m benchmarks.methods`: train every method and store it. `--write`: docs/results.md from what is stored."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.methods import jobs, page, rows
from benchmarks.methods.rows import FOLDER
from benchmarks.methods.settings import SETTINGS
from benchmarks.methods.tasks import TASKS, Task
from benchmarks.methods.train import prepared


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.write:
        page.write()
        return
    console = Console()
    tasks = [task for task in TASKS.values() if options.data is not None or not task.needs_data]
    wanted = {task.name: _wanted(task, options.rows) for task in tasks}
    if not any(wanted.values()):
        parser.error(
            f"no row has {' or '.join(options.rows)} in its name; rows are like digits/sam/0, cifar10 by --data"
        )
    for task in tasks:
        if wanted[task.name]:
            try:
                _train(task, wanted[task.name], options.data, options.jobs, console)
            except FileNotFoundError as error:
                parser.error(str(error))
            console.print(page.screen(task))


def _wanted(task: Task, words: Sequence[str]) -> list[tuple[str, int]]:
    every = [(name, seed) for name in SETTINGS for seed in task.seeds]
    return [(name, seed) for name, seed in every if chosen(f"{task.name}/{name}/{seed}", words)]


def _train(task: Task, wanted: Sequence[tuple[str, int]], data: Path | None, count: int, console: Console) -> None:
    missing = [(name, seed) for name, seed in wanted if not is_done(task, name, seed)]
    there = len(wanted) - len(missing)
    with _bar(console) as bar:
        line = bar.add_task(f"{task.name}: {there} of {len(wanted)} are stored", total=len(wanted), completed=there)
        for name in jobs.run(task, missing, data, count):
            bar.update(line, advance=1, description=f"{task.name}: {name}")


def chosen(row: str, words: Sequence[str]) -> bool:
    return not words or any(word in row for word in words)


def is_done(task: Task, name: str, seed: int, folder: Path = FOLDER) -> bool:
    """Whether it is stored, with the settings of today."""
    found = rows.read(rows.place(folder, task.name, name, seed))
    if not found:
        return False
    _, method = prepared(task, name, seed)
    return (found["settings"], found["task_settings"]) == (method.name, task.settings)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description=__doc__)
    parser.add_argument("--rows", nargs="+", default=[], metavar="WORD", help="only rows like digits/sam/0 with a WORD")
    parser.add_argument("--data", type=Path, help="the folder with the binary version of CIFAR-10; without it, digits")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once, one thread each")
    parser.add_argument("--write", action="store_true", help="train nothing; write docs/results.md from what is stored")
    return parser


if __name__ == "__main__":
    main()
