"""A training under `torchrun --max-restarts`, whose processes are killed at random moments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias

TIMEOUT = 900.0
"""Seconds after which a launch counts as hung."""


class Launch(NamedTuple):
    """The end of a launch."""

    code: int
    kills: int
    """Processes that were killed; the launch may have ended before all kills that were wanted."""
    seconds: float
    life: float
    """Seconds from the start of the ranks to the end, if none was killed."""
    output: str


Moment: TypeAlias = Callable[[float], bool]
"""Is told for how many seconds the ranks have been running, and returns True when it is time to kill one."""


def launch(
    module: str, arguments: Sequence[str], *, log: Path, kills: Sequence[Moment], random: Random, ranks: int = 2
) -> Launch:
    """Run a module on some ranks under torchrun; at each of the moments `kill -9` one rank, and torchrun starts all of
    them anew."""
    restarts = ["--standalone", "--nproc_per_node", str(ranks), "--max_restarts", str(max(len(kills), 1))]
    command = [sys.executable, "-m", "torch.distributed.run", *restarts, "--monitor_interval", "0.1", "-m", module]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else a store keeps the addresses of the dead
    began, done, seen = time.monotonic(), 0, set[int]()
    with log.open("w") as file:
        process = subprocess.Popen([*command, *arguments], env=environment, stdout=file, stderr=file)
        try:
            for moment in kills:
                workers, start = _new_workers(process, seen, ranks), time.monotonic()
                seen |= set(workers)
                while workers and not moment(time.monotonic() - start):
                    if _ends_within(process, 0.01):
                        workers = []
                if not workers:
                    break
                with suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(random.choice(workers), signal.SIGKILL)
                    done += 1
            start = time.monotonic()
            if not kills and _new_workers(process, seen, ranks):
                start = time.monotonic()
            code = process.wait(TIMEOUT)
        finally:
            process.kill()
    end = time.monotonic()
    return Launch(code, done, end - began, end - start, log.read_text())


def _new_workers(process: subprocess.Popen[bytes], seen: set[int], ranks: int) -> list[int]:
    """The processes of all ranks, once all are new; none if the launch has ended."""
    while not _ends_within(process, 0.02):
        workers = [pid for pid in _children(process.pid) if pid not in seen and _is_rank(pid)]
        if len(workers) == ranks:
            return workers
    return []


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _is_rank(pid: int) -> bool:
    with suppress(OSError):
        return (
            b"-m\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
            and b"distributed.run" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
    return False
