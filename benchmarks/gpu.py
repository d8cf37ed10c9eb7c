"""`python -m benchmarks.gpu`: what the tests cannot show without a GPU, checked and measured on one.

1. The laws of docs/design.md, for every method, with the model on the GPU.
2. How often a step makes the host wait for the GPU, counted by torch itself (`torch.cuda.set_sync_debug_mode`), with
   the lines of code that wait, beside the limits that the tests keep on a pretended device.
3. The table of benchmarks/README.md, measured on the GPU. Its limits are meant for a CPU.

The exit code is 0 if all laws and limits hold, 1 if one does not, and 2 without a GPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from itertools import product
from pathlib import Path
from typing import final

import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import report
from benchmarks.__main__ import NAMES, chosen, watcher
from benchmarks.figures import record
from benchmarks.harness import Track
from partialsgd.testing import contracts
from partialsgd.testing.problems import Problem
from partialsgd.testing.runs import Run
from tests.device.call_site import line_of_code
from tests.device.cases import BY_NAME, METHODS, OPTIMIZERS, problem_for
from tests.device.limits import FIRST_COUNTED, STEPS, limit_of
from tests.methods.laws import REFUSED_PROBLEMS

NO_GPU = """\
There is no GPU here: torch.cuda.is_available() is False (torch {version}).
On a machine with one, install a build of torch for it (https://pytorch.org/get-started/locally) and run this again.
To try the script itself on a CPU:
    python -m benchmarks.gpu --device cpu --rounds 1 --methods plain dropout --problems mlp --benchmarks switch"""
ONLY_ON_CPU = ("recipes",)
"""Benchmarks of the command line, which trains on CPUs."""
OPTIMIZER = "AdamW fused"
LAWS: dict[str, Callable[..., None]] = {
    name.removeprefix("test_"): getattr(contracts, name) for name in contracts.__all__ if name.startswith("test_law")
}


@final
@dataclass(frozen=True)
class Broken:
    """A law that does not hold on the device."""

    law: str
    method: str
    problem: str
    message: str


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    device, console = torch.device(options.device), Console()
    if device.type == "cuda" and not torch.cuda.is_available():
        print(NO_GPU.format(version=torch.__version__), file=sys.stderr)
        return 2
    if options.to is not None and options.to.exists():
        raise SystemExit(f"{options.to} exists already; give the name of a new file, or remove it")
    console.print(describe(device))
    tables: list[Table | str] = []
    with Progress(console=console, transient=True) as progress:
        broken = check_laws(device, options.methods, options.problems, progress)
        tables.append(table_of_laws(broken, options.methods))
        counted = count_waits(device, options.methods, progress)
        tables.append(table_of_waits(counted, device))
    for table in tables:
        console.print(table)
    tables += _benchmarks(device, options, console)
    if options.to is not None:
        _write(options.to, device, tables)
    too_many = [case for case, waits in counted.items() if max(map(Counter.total, waits)) > limit_of(case)]
    return 1 if broken or too_many else 0


def describe(device: torch.device) -> str:
    """The machine, as one must know it to compare figures."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"


def check_laws(
    device: torch.device, methods: Sequence[str], problems: Sequence[str], progress: Progress
) -> list[Broken]:
    """Run every law of `partialsgd.testing.contracts` for every method, with the model on the device."""
    cells = [
        (law, case, problem, autocast)
        for law, case in product(LAWS, methods)
        for problem in _problems(case, problems)
        for autocast in ((False, True) if problem.name == "transformer" and _takes_autocast(law) else (False,))
    ]
    task, broken = progress.add_task("laws", total=len(cells)), list[Broken]()
    with _deterministic():
        for law, case, problem, autocast in cells:
            progress.update(task, description=f"{case}, {problem.name}: {law:.40}")
            given = (METHODS[case], on(problem, device), OPTIMIZERS[OPTIMIZER])
            if message := _why_broken(LAWS[law], (*given, autocast) if _takes_autocast(law) else given):
                broken.append(Broken(law, case, problem.name + " in bfloat16" * autocast, message))
            progress.advance(task)
    return broken


def _problems(case: str, names: Sequence[str]) -> list[Problem]:
    """The problems that a method is tried on; one that trains levels has a nested model of its own."""
    if problem_for(case).name not in BY_NAME:
        return [problem_for(case)]
    return [BY_NAME[name] for name in names if (case, name) not in REFUSED_PROBLEMS]


def _takes_autocast(law: str) -> bool:
    return "autocast" in signature(LAWS[law]).parameters


def on(problem: Problem, device: torch.device) -> Problem:
    """The same problem with its model on the device; it moves its batches there itself."""
    build = problem.build
    return replace(problem, build=lambda: build().to(device))


def _why_broken(law: Callable[..., None], given: tuple[object, ...]) -> str:
    try:
        law(*given)
    except pytest.skip.Exception:
        return ""  # not claimed
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return ""


@contextmanager
def _deterministic() -> Iterator[None]:
    """Two runs of one training have the same bits on a GPU only if its kernels add in the same order each time."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(before)


def count_waits(device: torch.device, methods: Sequence[str], progress: Progress) -> dict[str, list[Counter[str]]]:
    """For each method the lines of code that made the host wait, step by step; empty where torch cannot count."""
    if device.type != "cuda":
        return {}
    task, counted = progress.add_task("synchronisations", total=len(methods)), dict[str, list[Counter[str]]]()
    for case in methods:
        progress.update(task, description=f"synchronisations, {case}")
        run = Run(on(problem_for(case), device), OPTIMIZERS[OPTIMIZER], METHODS[case], False)
        steps = []
        for t in range(STEPS):
            with synchronisations() as sites:
                run.step(t)
            steps.append(sites)
        counted[case] = steps[FIRST_COUNTED:]
        progress.advance(task)
    return counted


@contextmanager
def synchronisations() -> Iterator[Counter[str]]:
    """Count the operations that make the host wait for the GPU, by line of code: torch warns of each one."""
    with warnings_by_line("synchronizing CUDA operation") as sites:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield sites
        finally:
            torch.cuda.set_sync_debug_mode("default")


@contextmanager
def warnings_by_line(text: str) -> Iterator[Counter[str]]:
    """Count the warnings that contain a text, by line of code, without those of problems that move their batches."""
    sites: Counter[str] = Counter()

    def count(message: Warning | str, *_: object, **__: object) -> None:
        site = line_of_code()
        if text in str(message) and not site.startswith("testing/"):
            sites[site] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = count
        yield sites


def table_of_laws(broken: Sequence[Broken], methods: Sequence[str]) -> Table | str:
    tried = f"{len(LAWS)} laws, {len(methods)} methods"
    if not broken:
        return f"{tried}: all hold"
    table = Table("law", "method", "problem", "what happened", title=f"{tried}: {len(broken)} broken")
    for found in broken:
        table.add_row(found.law, found.method, found.problem, found.message, style="bold red")
    return table


def table_of_waits(counted: dict[str, list[Counter[str]]], device: torch.device) -> Table | str:
    if not counted:
        return f"synchronisations a step: not available on {device.type}"
    table = Table("method", "limit", "waits", "where", title="synchronisations a step")
    for case, steps in counted.items():
        most = max(steps, key=Counter.total)
        where = ", ".join(f"{site}{f' × {count}' if count > 1 else ''}" for site, count in sorted(most.items()))
        style = "bold red" if most.total() > limit_of(case) else None
        table.add_row(case, str(limit_of(case)), str(most.total()), where, style=style)
    return table


def _benchmarks(device: torch.device, options: argparse.Namespace, console: Console) -> list[Table]:
    tables = list[Table]()
    for name in chosen(options.benchmarks):
        if name in ONLY_ON_CPU:
            continue
        with Progress(console=console, auto_refresh=False, transient=True) as progress:
            threads, warm_up = torch.get_num_threads(), min(3, options.rounds)
            track = Track(options.rounds, warm_up, threads, watcher(progress), device)
            with built_on(device):
                figures = import_module(f"benchmarks.{name}").measure(track)
        tables.append(report.screen(record(name, figures, track, None)))
        console.print(tables[-1])
    return tables


@contextmanager
def built_on(device: torch.device) -> Iterator[None]:
    """Networks and batches are made on the device. A race switches this off while the clock runs."""
    if device.type == "cpu":
        yield
        return
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def _write(path: Path, device: torch.device, tables: Sequence[Table | str]) -> None:
    with path.open("x", encoding="utf-8") as file:
        page = Console(file=file, width=160)
        page.print(describe(device))
        for table in tables:
            page.print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="where to run (cuda); cpu tries the script itself")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    parser.add_argument("--problems", nargs="+", default=list(BY_NAME), choices=list(BY_NAME), metavar="PROBLEM")
    parser.add_argument("--benchmarks", nargs="*", default=[], metavar="WORD", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=21, help="of each benchmark")
    parser.add_argument("--to", type=Path, metavar="FILE", help="also write the tables to a new file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
