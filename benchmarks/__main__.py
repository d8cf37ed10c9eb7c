"""`python -m benchmarks [word …]`: measure, show, store. `--write`: the README's table from what is stored."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks import report
from benchmarks.figures import FEWEST_ROUNDS, THREADS, record
from benchmarks.harness import Track, Watcher
from benchmarks.machine import Company

NAMES = (
    "plain",
    "whole_tensor",
    "element_masks",
    "two_gradients",
    "memory",
    "nested_transformer",
    "nested_gpt",
    "nest_time",
    "budget_latency",
    "nested_resnet",
    "level_switch",
    "meprop",
    "freezing",
    "block_coordinate",
    "criteria",
    "recipes",
)

ON_REQUEST = ("network", "compression", "subnets")
"""Benchmarks that run only if a word names them: they need root, or take very long."""

SHOWN = (*NAMES, *ON_REQUEST, "peers")
"""The benchmarks on the page; `python -m benchmarks.peers` runs the last in an environment of its own."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.write:
        write_readme()
        return
    console = Console()
    for name in chosen(options.words):
        _run(name, options.rounds, options.threads, console)


def chosen(words: Sequence[str]) -> list[str]:
    """The benchmark that a word names, or all whose summary holds it; without words all that need not be asked for."""
    names = (*NAMES, *ON_REQUEST) if words else NAMES
    if words and set(words) <= set(names):
        return [name for name in names if name in words]
    about = {name: f"{name} {import_module(f'benchmarks.{name}').SUMMARY}".lower() for name in names}
    for word in words:
        if not any(word.lower() in text for text in about.values()):
            listed = "\n".join(f"  {name}: {text.partition(' ')[2]}" for name, text in about.items())
            raise SystemExit(f"no benchmark is about {word!r}; there are\n{listed}")
    return [name for name, text in about.items() if not words or any(word.lower() in text for word in words)]


def write_readme() -> None:
    page = report.in_place(report.README.read_text(encoding="utf-8"), report.tables(SHOWN))
    report.README.write_text(page, encoding="utf-8")


def _run(name: str, rounds: int, threads: int, console: Console) -> None:
    company = Company()
    # Refreshed between rounds only: a thread that draws ten times a second would run on one of the cores.
    with Progress(console=console, auto_refresh=False, transient=True) as progress:
        track = Track(rounds=rounds, threads=threads, watch=watcher(progress))
        figures = import_module(f"benchmarks.{name}").measure(track)
    taken = record(name, figures, track, company.share())
    console.print(report.screen(taken))
    if rounds >= FEWEST_ROUNDS:
        taken.save()
    else:
        console.print(f"not stored: a figure needs {FEWEST_ROUNDS} rounds or more")


def watcher(progress: Progress) -> Watcher:
    """A bar for each race, which moves between rounds."""
    tasks: dict[str, TaskID] = {}

    def watch(what: str, done: int, rounds: int) -> None:
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=rounds)
        progress.update(tasks[what], completed=done, refresh=True)

    return watch


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "words", nargs="*", help="only these benchmarks, or those whose summary holds one of these words"
    )
    parser.add_argument("--rounds", type=int, default=21, help="fewer than 15 are shown but not stored")
    parser.add_argument(
        "--threads", type=int, default=THREADS, help="of torch; other than 2 is stored in a file of its own"
    )
    parser.add_argument("--write", action="store_true", help="measure nothing; write README.md from what is stored")
    return parser


if __name__ == "__main__":
    main()
