"""Real processes in a gloo group: `run_on(work, ranks, folder)` gives what each rank returned."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Work = Callable[[int], dict[str, Any]]
"""Is given its rank, and returns tensors and numbers."""

PRELOADED = [
    "torch.distributed.fsdp",
    "partialsgd.distributed.subnet_worker",
    "partialsgd.engine.partial_sgd",
    "partialsgd.methods",
    "partialsgd.nested",
]


def on_ranks(work: Work) -> Callable[[int, str, int], None]:
    """Make a function of the module level that `run_on` can run in each process of a group."""

    @functools.wraps(work)
    def run(rank: int, folder: str, ranks: int) -> None:
        torch.set_num_threads(1)
        place = f"file://{folder}/rendezvous"
        # A rank that waits for one that does not come fails, and does not hold up the tests for half an hour.
        dist.init_process_group("gloo", init_method=place, rank=rank, world_size=ranks, timeout=timedelta(minutes=5))
        torch.save(work(rank), Path(folder) / f"{rank}.pt")
        dist.destroy_process_group()

    return run


def run_on(work: Callable[[int, str, int], None], ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Run `work` in so many processes, and return what each of them returned. A rank that raises ends the others."""
    # A server that has imported torch forks each process: 0.1 s instead of 3.
    multiprocessing.set_forkserver_preload(PRELOADED)
    mp.start_processes(work, args=(str(folder), ranks), nprocs=ranks, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]
