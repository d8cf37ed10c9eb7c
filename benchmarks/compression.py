"""Compressed gradients over a slow link: bytes, seconds and the loss after some steps, beside uncompressed ones.

`python -m benchmarks compression --threads 1` measures and stores (it needs root); `python -m benchmarks.compression`
tries everything once and stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import partialsgd as ps
from benchmarks.figures import Figure
from benchmarks.harness import Track, estimate
from benchmarks.links import shaped_links
from benchmarks.network import (
    LINKS,
    SLOW,
    VOCABULARY,
    Trainer,
    bytes_a_step,
    exact,
    ratio,
    rounds_over,
    seconds_of,
    show,
    transformer,
)
from partialsgd.distributed import Compression, compress, data_parallel

SUMMARY = "compressed gradients over a slow link: bytes, time and loss (needs root; only when asked for)"

COMPRESSIONS: Mapping[str, Callable[[], Any]] = {
    "plain": lambda: None,
    "fp16": lambda: compress(dtype=torch.float16),
    "top-k 10 %": lambda: compress(top_k=0.1),
    "top-k 1 %": lambda: compress(top_k=0.01),
    "random-k 10 %": lambda: compress(random_k=0.1),
    "PowerSGD, rank 4": lambda: compress(power_sgd=4),
}
LEARNED_WORDS = 100  # few, so that 200 steps teach something
_POWER_SGD_WARM_UP = 12  # its first ten steps are not compressed


def measure(track: Track) -> list[Figure]:
    return figures_of(track.rounds)


def trainer_of(rank: int, model: nn.Module, compression: Compression | None, words: int = VOCABULARY) -> Trainer:
    """Plain training by Adam."""
    optimizer = torch.optim.Adam(model.parameters(), 3e-4, fused=True)
    return Trainer(rank, data_parallel(model, compression=compression), model, ps.methods.plain(), optimizer, words)


def race(rank: int, rounds: int) -> dict[str, list[tuple[float, int, float]]]:
    """On each worker: steps of the full network by plain training, with each compression in turns."""
    trainers = {}
    for name, make in COMPRESSIONS.items():
        model = transformer()
        trainers[name] = trainer_of(rank, model, make())
    taken: dict[str, list[tuple[float, int, float]]] = {name: [] for name in trainers}
    for number in range(-_POWER_SGD_WARM_UP, rounds):
        for name, trainer in trainers.items():
            if number >= 0 or name.startswith("Power") or number >= -2:
                result = trainer.step()
                if number >= 0:
                    taken[name].append(result)
    return taken


def losses(rank: int, steps: int) -> dict[str, list[float]]:
    """On each worker: the loss of each step of plain training, with each compression."""
    taken = {}
    for name, make in COMPRESSIONS.items():
        model = transformer()
        trainer = trainer_of(rank, model, make(), LEARNED_WORDS)
        taken[name] = [trainer.step()[2] for _ in range(steps)]
    return taken


def figures_of(rounds: int, loss_steps: int = 200) -> list[Figure]:
    with shaped_links(2, SLOW) as hosts:
        results = hosts.run(race, rounds_over(SLOW, rounds))
    merged = [{"taken": result} for result in results]
    seconds, sent = seconds_of(merged), bytes_a_step(merged)
    with shaped_links(2, "10gbit") as hosts:
        after = hosts.run(losses, loss_steps)
    last = max(1, loss_steps // 10)
    final_loss = {name: sum(sum(r[name][-last:]) for r in after) / (last * len(after)) for name in COMPRESSIONS}
    figures, where = [], f"2 workers, {LINKS[SLOW]}"
    for name in COMPRESSIONS:
        if name == "plain":
            continue
        medians = {each: estimate(seconds[each]).value for each in (name, "plain")}
        both = {each: sent[each] for each in (name, "plain")}
        figures += [
            Figure(f"{name}: bytes ÷ uncompressed, {where}", exact(sent[name] / sent["plain"]), medians=both),
            Figure(f"{name}: step ÷ uncompressed, {where}", ratio(seconds[name], seconds["plain"]), medians=medians),
            Figure(
                f"{name}: loss after {loss_steps} steps ÷ uncompressed",
                exact(final_loss[name] / final_loss["plain"]),
                medians={each: final_loss[each] for each in (name, "plain")},
            ),
        ]
    return figures


if __name__ == "__main__":
    show(figures_of(3, loss_steps=12))
