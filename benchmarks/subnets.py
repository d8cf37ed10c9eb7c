"""Independent subnets on workers over a slow link, beside DDP: bytes and seconds of a round of steps.

`python -m benchmarks subnets --threads 1` measures and stores (it needs root); `python -m benchmarks.subnets` tries it
once and stores nothing.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.figures import Figure
from benchmarks.harness import Estimate, Track, estimate
from benchmarks.links import bytes_sent, shaped_links
from partialsgd.distributed import independent_subnets

SUMMARY = "independent subnets on workers over a slow link ÷ DDP, bytes and time (needs root; only when asked for)"

WORKERS, LINK, EVERY, BATCH = 4, "100mbit", 20, 32


def measure(track: Track) -> list[Figure]:
    return figures(track.rounds)


def mlp() -> nn.Sequential:
    """The fully connected network with two hidden layers that the method was made for: 1.4 M parameters."""
    torch.manual_seed(0)
    layers = (nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 32))
    return nn.Sequential(*layers)


def race(rank: int, rounds: int) -> dict[str, Any]:
    """On each worker: a round of subnets, and as many steps of DDP, in turns; seconds and bytes on the link."""
    narrow, whole = mlp(), mlp()
    worker = independent_subnets(narrow, torch.optim.SGD(narrow.parameters(), 0.01, momentum=0.9), EVERY)
    ddp = DistributedDataParallel(whole, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(whole.parameters(), 0.01, momentum=0.9)

    def loss_of(model: nn.Module, t: int) -> Tensor:
        x = torch.randn(BATCH, 256, generator=torch.Generator().manual_seed(1000 * t + rank))
        loss = nn.functional.mse_loss(model(x), x[:, :32].sin())
        loss.backward()
        return loss

    def subnets() -> None:
        for _ in range(EVERY):
            worker.step(lambda: loss_of(narrow, worker.t))

    def plainly() -> None:
        for t in range(EVERY):
            optimizer.zero_grad()
            loss_of(ddp, t)
            optimizer.step()

    contestants = {"subnets": subnets, "ddp": plainly}
    taken: dict[str, list[tuple[float, int]]] = {name: [] for name in contestants}
    for number in range(-1, rounds):
        for name in sorted(contestants, reverse=number % 2 == 1):
            dist.barrier()
            before, start = bytes_sent(), perf_counter()
            contestants[name]()
            seconds = perf_counter() - start
            dist.barrier()  # what was sent has left the link's queue
            if number >= 0:
                taken[name].append((seconds, bytes_sent() - before))
    return {"taken": taken, "parameters": sum(p.numel() for p in narrow.parameters())}


def figures(rounds: int) -> list[Figure]:
    with shaped_links(WORKERS, LINK) as hosts:
        workers = hosts.run(race, rounds)
    whole = sum(p.numel() for p in mlp().parameters())
    seconds = {
        name: [max(w["taken"][name][i][0] for w in workers) for i in range(rounds)] for name in ("subnets", "ddp")
    }
    sent = {
        name: sum(each for w in workers for _, each in w["taken"][name]) / (WORKERS * rounds)
        for name in ("subnets", "ddp")
    }
    medians = {name: estimate(times).value for name, times in seconds.items()}
    where = f"{WORKERS} workers, 100 Mbit/s, rounds of {EVERY} steps"
    share = max(w["parameters"] for w in workers) / whole
    return [
        Figure(f"bytes of a round of subnets ÷ DDP's, {where}", _exact(sent["subnets"] / sent["ddp"]), medians=sent),
        Figure(
            f"samples a second by subnets ÷ DDP's, {where}",
            estimate([b / a for a, b in zip(seconds["subnets"], seconds["ddp"], strict=True)]),
            medians=medians,
        ),
        Figure(f"parameters that a worker trains ÷ the whole network's, {WORKERS} workers", _exact(share)),
    ]


def _exact(value: float) -> Estimate:
    return Estimate(value, value, value)


if __name__ == "__main__":
    for each in figures(2):
        print(" | ".join(each.cells()), dict(each.medians))
