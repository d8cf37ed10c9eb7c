"""Runs a study: its trainings are jobs of a pool of processes, and each result is stored as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from rich.console import Console

from partialsgd._util.malloc import keep_freed_memory
from partialsgd.lab.reproduce.jobs import run_jobs
from partialsgd.lab.reproduce.workers import WorkerPool

LOGS = Path("runs") / "studies"


@final
@dataclass(frozen=True)
class StudyJob:
    """One training, by a function that returns what is stored."""

    label: str
    call: str
    arguments: Mapping[str, Any]


def run(
    jobs: Sequence[StudyJob], *, is_done: Callable[[StudyJob], bool], store: Callable[[Any], None], at_once: int
) -> None:
    """Train and store what is missing; stopped or killed, the same call goes on."""
    console, missing = Console(stderr=True), [job for job in jobs if not is_done(job)]
    console.print(f"{len(jobs) - len(missing)} of {len(jobs)} trainings are stored")
    results: set[str] = set()

    def finished(job: Any, result: Any) -> None:
        store(result)
        results.add(job.label)

    failures = run_jobs(
        lambda: [job for job in missing if job.label not in results], WorkerPool(at_once, LOGS), console, finished
    )
    if failures:
        raise SystemExit("\n".join(failures))


def use_one_thread() -> None:
    """Let a training have one thread, and keep memory that it frees: times are compared."""
    torch.set_num_threads(1)
    keep_freed_memory()


def is_selected(name: str, words: Sequence[str]) -> bool:
    """True if a name contains one of the words; without words every name is selected."""
    return not words or any(word in name for word in words)
