"""`python -m benchmarks.convergence --data FOLDER`: train and store what is missing. `--write`: docs/convergence.md."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.convergence import page
from benchmarks.convergence.runs import FOLDER, is_done
from benchmarks.convergence.settings import SETTINGS
from benchmarks.convergence.train import train
from benchmarks.harness import keep_freed_memory


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.write:
        page.write()
        return
    if options.steps is not None and (options.steps < 2 or options.results == FOLDER):
        parser.error("--steps is to try it out: 2 or more, and with --results, a folder of its own")
    if options.data is None:
        parser.error("--data is missing: the folder with cifar-10-batches-bin and multi30k.de-en in it")
    every = [(name, seed) for name, setting in SETTINGS.items() for seed in setting.task.seeds]
    wanted = [(name, seed) for name, seed in every if chosen(f"{name}/{seed}", options.runs)]
    if not wanted:
        parser.error(f"no run has {' or '.join(options.runs)} in its name; runs are like dropout/0, period_64/2")
    try:
        for task in {task.name: task for task in (SETTINGS[name].task for name, _ in wanted)}.values():
            task.load(options.data / task.folder)
    except FileNotFoundError as error:
        parser.error(str(error))
    _train(wanted, options, Console())


def _train(wanted: Sequence[tuple[str, int]], options: argparse.Namespace, console: Console) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    settings = {name: SETTINGS[name].of_steps(options.steps).settings for name, _ in wanted}
    missing = [(name, seed) for name, seed in wanted if not is_done(options.results, name, seed, settings[name])]
    there = len(wanted) - len(missing)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        line = bar.add_task(f"{there} of {len(wanted)} are stored", total=len(wanted), completed=there)
        for name, seed in missing:
            bar.update(line, description=f"{name}/{seed}")
            train(name, seed, options.data, options.steps).save(options.results)
            bar.update(line, advance=1)


def chosen(run: str, words: Sequence[str]) -> bool:
    return not words or any(word in run for word in words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convergence", description=__doc__)
    parser.add_argument("--data", type=Path, help="the folder with cifar-10-batches-bin and multi30k.de-en in it")
    parser.add_argument("--runs", nargs="+", default=[], metavar="WORD", help="only runs like dropout/0 with a WORD")
    parser.add_argument("--steps", type=int, help="instead of those of the task, to try it out; with --results")
    parser.add_argument("--results", type=Path, default=FOLDER, help="where finished runs are stored")
    parser.add_argument("--write", action="store_true", help="train nothing; write the page from what is stored")
    return parser


if __name__ == "__main__":
    main()
