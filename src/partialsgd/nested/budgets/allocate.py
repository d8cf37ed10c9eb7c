"""Which sizes fit a budget: units are removed one by one, those first that are worth least for what they cost."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator, Sequence

from partialsgd.nested.budgets.choices import Choice
from partialsgd.nested.budgets.costs import Cost, Sizes

_TEMPERS = (0.0, 0.5, 1.0)
_STEPS = 64  # a choice is made smaller in at most so many steps


def candidates(choices: Sequence[Choice], cost: Cost, limit: float, start: Sizes) -> Iterator[dict[str, int]]:
    """Yield sizes within the limit and not above `start`: the same share everywhere, then what greedy removal leaves.

    Worths of different layers are compared as measured (temper 1), only within layers (0), or in between: estimates
    of single removals say less about layers of which much is removed.
    """
    yield _uniform(choices, cost, limit, start)
    for temper in _TEMPERS:
        yield greedy(choices, cost, limit, start, temper)


def greedy(choices: Sequence[Choice], cost: Cost, limit: float, start: Sizes, temper: float) -> dict[str, int]:
    """Return sizes within the limit: units that are worth least for what they cost go first."""
    sizes = dict(start)
    worths = {choice.name: _tempered(choice.worth, start[choice.name], temper) for choice in choices}
    allowed = {choice.name: cost.sizes_of(choice) for choice in choices}

    def smaller(name: str) -> int:
        """Return the next smaller size: one unit less, or a 64th of many."""
        index = bisect.bisect_left(allowed[name], sizes[name])
        return allowed[name][max(0, index - max(1, len(allowed[name]) // _STEPS))]

    def price(name: str) -> float:
        """Return the worth of the next units to go, divided by what they cost."""
        saved = cost.saved(sizes, name, smaller(name))
        return sum(worths[name][smaller(name) : sizes[name]]) / saved if saved > 0 else float("inf")

    queue = [(price(name), name) for name in sizes if sizes[name] > allowed[name][0]]
    heapq.heapify(queue)
    total = cost.at(sizes)
    while queue and total > limit:
        old_price, name = heapq.heappop(queue)
        now = price(name)
        if queue and now > max(old_price, queue[0][0]):  # another choice was made smaller since, which changed it
            heapq.heappush(queue, (now, name))
            continue
        sizes[name] = smaller(name)
        total = cost.at(sizes)
        if sizes[name] > allowed[name][0]:
            heapq.heappush(queue, (price(name), name))
    return _refilled(choices, cost, limit, start, sizes, worths)


def _refilled(
    choices: Sequence[Choice],
    cost: Cost,
    limit: float,
    start: Sizes,
    sizes: dict[str, int],
    worths: dict[str, list[float]],
) -> dict[str, int]:
    """Give back units that still fit, the most valuable for their cost first."""
    allowed = {choice.name: cost.sizes_of(choice) for choice in choices}
    open_names = [choice.name for choice in choices]
    while open_names:
        room = limit - cost.at(sizes)
        gains: list[tuple[float, str, int]] = []
        for name in open_names:
            if sizes[name] < start[name]:
                larger = allowed[name][bisect.bisect_right(allowed[name], sizes[name])]
                extra = -cost.saved(sizes, name, larger)
                if extra <= room:
                    gains.append((sum(worths[name][sizes[name] : larger]) / max(extra, 1e-30), name, larger))
        if not gains:
            return sizes
        _, best, size = max(gains)
        sizes[best] = size
        open_names = [name for _, name, _ in gains]
    return sizes


def _uniform(choices: Sequence[Choice], cost: Cost, limit: float, start: Sizes) -> dict[str, int]:
    def at(share: float) -> dict[str, int]:
        return {c.name: min(start[c.name], _at_most(cost.sizes_of(c), round(share * c.full))) for c in choices}

    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if cost.at(at(middle)) <= limit else (low, middle)
    return at(low)


def _at_most(allowed: Sequence[int], size: int) -> int:
    """Return the largest allowed size that is not above another; if all are, the smallest."""
    return allowed[max(0, bisect.bisect_right(allowed, size) - 1)]


def _tempered(worths: Sequence[float], size: int, temper: float) -> list[float]:
    """Return the worths divided by a power of the mean over the first `size`, which are still there."""
    factor = (sum(worths[:size]) / size + 1e-300) ** (temper - 1.0)
    return [worth * factor for worth in worths]
