"""Measured on this machine: all-reduces over shaped links, and steps of the paper's Transformer at a small size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import partialsgd as ps
from benchmarks.links import shaped_links
from benchmarks.network import NESTS, batch, transformer
from partialsgd.distributed import data_parallel

RATES = {"100mbit": 1e8, "1gbit": 1e9}
WORKERS = (2, 4)
SIZES = (1 << 16, 1 << 20, 1 << 22, 1 << 24)
"""Bytes of the all-reduces to which the links are fitted."""


def measure(rounds: int, numbers_of_workers: Sequence[int] = WORKERS) -> Iterator[dict[str, Any]]:
    """A record for each number of workers and each link."""
    for workers in numbers_of_workers:
        for name, rate in RATES.items():
            with shaped_links(workers, name) as hosts:
                found = hosts.run(on_worker, rounds)
            slowest = {key: max(worker[key] for worker in found) for key in found[0] if not key.startswith("bytes")}
            sizes = {key: value for key, value in found[0].items() if key.startswith("bytes")}
            about = {"workers": workers, "rounds": rounds, "processors": len(os.sched_getaffinity(0))}
            yield {"link": name, "rate": rate, **about, **slowest, **sizes}


def on_worker(rank: int, rounds: int) -> dict[str, float]:
    """Median seconds of all-reduces, of steps without communication, and of steps with it."""
    found: dict[str, float] = {}
    for size in SIZES:
        numbers = torch.zeros(size // 4)
        found[f"all-reduce {size}"] = _median(lambda numbers=numbers: dist.all_reduce(numbers), rounds)
    for name, make in NESTS.items():
        contestants: dict[str, tuple[nn.Module, ps.PartialSGD]] = {}
        for kind in ("compute", "step"):
            nested = ps.nest(transformer(), make())
            wrapped: nn.Module = nested if kind == "compute" else data_parallel(nested)
            optimizer = torch.optim.Adam(nested.parameters(), 1e-3, fused=True)
            contestants[kind] = wrapped, ps.PartialSGD(wrapped, optimizer, ps.methods.alternating())
        for level in nested.levels:
            found[f"bytes {name} {level}"] = 4.0 * nested.mask(level).count()
        seconds: dict[str, list[float]] = {}
        for number in range(2 * (rounds + 2)):
            for kind, (model, sgd) in contestants.items():  # in turns, so that other work on the machine slows both
                inputs = batch(sgd.t, rank)
                dist.barrier()
                start = perf_counter()
                step = sgd.step(lambda inputs=inputs, model=model: _backward(model(**inputs).loss))
                if number >= 4:
                    seconds.setdefault(f"{kind} {name} {step.level}", []).append(perf_counter() - start)
        found |= {key: median(times) for key, times in seconds.items()}
    return found


def _backward(loss: Tensor) -> Tensor:
    loss.backward()
    return loss


def _median(run: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        dist.barrier()
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return median(times[1:])
