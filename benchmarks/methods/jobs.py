"""Trainings in processes of their own, with one thread each. (What a process runs cannot be in `__main__`.)"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from benchmarks.harness import keep_freed_memory
from benchmarks.methods.rows import FOLDER
from benchmarks.methods.tasks import Task
from benchmarks.methods.train import train


def run(task: Task, wanted: Sequence[tuple[str, int]], data: Path | None, jobs: int) -> Iterator[str]:
    """Trains and stores these methods with these seeds, and says which one is done."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _alone) as pool:
        running = {pool.submit(_train, task, name, seed, data, FOLDER): name for name, seed in wanted}
        try:
            for done in as_completed(running):
                done.result()
                yield running[done]
        finally:
            pool.shutdown(cancel_futures=True)


def _alone() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()


def _train(task: Task, name: str, seed: int, data: Path | None, folder: Path) -> None:
    train(task, name, seed, data).save(folder)
