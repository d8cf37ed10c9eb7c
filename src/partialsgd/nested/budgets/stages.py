"""A cut in stages: after each, what is left is measured anew in the network that is left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import nn

from partialsgd.nested.budgets.allocate import greedy
from partialsgd.nested.budgets.choices import Choice, LossBatch, measure_again
from partialsgd.nested.budgets.costs import Cost, Sizes

_TEMPERS = (0.5, 1.0)
_LEFT = 3 / 4  # so much of what may be removed is left by a stage
_LEAST = 1 / 100


def staged(
    model: nn.Module, choices: Sequence[Choice], cost: Cost, limit: float, start: Sizes, batches: Sequence[LossBatch]
) -> Iterator[tuple[list[Choice], dict[str, int]]]:
    """Yield sizes within the limit and not above `start`, and the choices as last measured, for each temper.

    Units that do the same make each other look useless, and all of them would go at once. In stages the last of them
    is kept, because it is measured when the others are gone. `choices` are taken to be measured at `start`.
    """
    limits = stage_limits(cost, choices, limit, start)
    for temper in _TEMPERS:
        own, sizes = list(choices), dict(start)
        for number, stage in enumerate(limits):
            if number > 0:
                own = measure_again(model, own, sizes, batches)
            sizes = greedy(own, cost, stage, sizes, temper)
        yield own, sizes


def stage_limits(cost: Cost, choices: Sequence[Choice], limit: float, start: Sizes) -> list[float]:
    """Return the costs after each stage; the last is the limit. Each leaves 3/4 of what may be removed, or more."""
    least = cost.at({choice.name: cost.sizes_of(choice)[0] for choice in choices})
    removable = cost.at(start) - least
    if removable <= 0:
        return [limit]
    left = min(1.0, max(_LEAST, (limit - least) / removable))
    count = max(1, math.ceil(math.log(left) / math.log(_LEFT) - 1e-9))
    return [least + removable * left ** (number / count) for number in range(1, count)] + [limit]
