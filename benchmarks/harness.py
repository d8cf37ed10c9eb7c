"""Who is faster, and how sure is that: contestants run in turns, and the ratio is taken within each round.

A noisy machine slows neighbours in time alike, so a ratio within a round is steadier than a ratio of two averages.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import comb
from statistics import median
from time import perf_counter
from typing import TypeAlias, final

import torch

from partialsgd._util.malloc import keep_freed_memory


@final
class Seconds(float):
    """Returned by a run that has timed a part of itself: this is then its time."""


Run: TypeAlias = Callable[[], object]
Contestant: TypeAlias = Callable[[], Run]
"""Prepares, which is not timed, and returns what is timed."""

Watcher: TypeAlias = Callable[[str, int, int], None]
"""Told after each round: what is raced, the rounds that are done, and of how many."""


def ready(run: Run) -> Contestant:
    """A contestant that needs no preparation."""
    return lambda: run


@final
@dataclass(frozen=True)
class Estimate:
    """A median and the interval that holds the true one with 95 % confidence."""

    value: float
    low: float
    high: float


def estimate(samples: Sequence[float]) -> Estimate:
    """By order statistics, which assume nothing of the distribution but that samples are independent."""
    ordered, rank = sorted(samples), _rank(len(samples))
    return Estimate(median(ordered), ordered[rank], ordered[-1 - rank])


def _rank(n: int) -> int:
    """The largest k for which the k smallest and the k largest of n may be left out: P(median outside) <= 5 %."""
    tails = (2 * sum(comb(n, i) for i in range(k + 1)) / 2**n for k in range(n // 2 + 1))
    return max(0, sum(tail <= 0.05 for tail in tails) - 1)


@final
@dataclass(frozen=True)
class Times:
    """Seconds of each contestant in each round."""

    seconds: Mapping[str, Sequence[float]]

    def of(self, *names: str) -> Iterator[tuple[float, ...]]:
        """The named contestants' times, round by round."""
        return zip(*(self.seconds[name] for name in names), strict=True)

    def ratio(self, name: str, baseline: str) -> Estimate:
        return estimate([a / b for a, b in self.of(name, baseline)])

    def ratio_to_sum(self, name: str, parts: Sequence[str]) -> Estimate:
        return estimate([a / sum(others) for a, *others in self.of(name, *parts)])

    def estimate(self, name: str) -> Estimate:
        return estimate(self.seconds[name])

    def difference(self, name: str, baseline: str) -> Estimate:
        return estimate([a - b for a, b in self.of(name, baseline)])

    def medians(self, *names: str) -> dict[str, float]:
        return {name: median(self.seconds[name]) for name in names or self.seconds}


@final
@dataclass(frozen=True)
class Track:
    """How contestants are raced."""

    rounds: int = 21
    warm_up: int = 3
    threads: int = 2
    watch: Watcher = field(default=lambda what, done, rounds: None)
    device: torch.device = torch.device("cpu")  # noqa: RUF009  # it cannot change
    """Where the contestants run: the clock is read when all work there is done."""

    def race(self, what: str, contestants: Mapping[str, Contestant], *, repeat: int = 3) -> Times:
        """Each contestant `repeat` times a round, in turns; its time in the round is the median of those."""
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        with _quiet(self.threads):
            for number in range(-self.warm_up, self.rounds):
                times = _round(contestants, repeat, random.Random(number), self.device)
                if number >= 0:
                    for name, taken in times.items():
                        seconds[name].append(median(taken))
                self.watch(what, max(0, number + 1), self.rounds)
        return Times(seconds)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was asked to do; a CPU always has."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def _round(
    contestants: Mapping[str, Contestant], repeat: int, order: random.Random, device: torch.device
) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeat):
        # Shuffled, so that no contestant always finds in the cache what the same one has left there.
        for name in order.sample(list(contestants), len(contestants)):
            run = contestants[name]()
            wait_for(device)
            start = perf_counter()
            part = run()
            wait_for(device)
            taken[name].append(part if isinstance(part, Seconds) else perf_counter() - start)
    return taken


@contextmanager
def _quiet(threads: int) -> Iterator[None]:
    """Nobody collects garbage while the clock runs, and the number of threads is known.

    Networks are built on torch's default device. That is switched off here, since it slows every call of torch.
    """
    before, collected, default = torch.get_num_threads(), gc.isenabled(), torch.get_default_device()
    if default.type != "cpu":
        torch.set_default_device(None)
    torch.set_num_threads(threads)
    gc.collect()
    gc.disable()
    keep_freed_memory()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if default.type != "cpu":
            torch.set_default_device(default)
        if collected:
            gc.enable()
