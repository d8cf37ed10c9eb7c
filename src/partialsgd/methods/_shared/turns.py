"""Which level is next: each gets steps in proportion to what one is worth, and none is left out for long."""

from __future__ import annotations

import math
from collections.abc import Mapping

EVENLY = 1 / 4
"""The share of all steps that is dealt evenly, whatever they are worth."""


def worth(q: float, size: float) -> float:
    """Of a level's step, relative to one of the whole network and to its size: (1 / q²) / size.

    By Lemma 3 a step lowers f by γ/2 · α² ‖p ⊙ G̃‖², and one of the whole network by γ/2 · ‖G‖²: the ratio is 1/q².
    `size` is the level's share of the parameters. A mask that leaves that share of ‖G‖² and is not perturbed, such as
    a random one on average, gets 1.
    """
    return 0.0 if math.isnan(q) else 1 / (q * q * size)


def shares(worths: Mapping[str, float]) -> dict[str, float]:
    """Of the steps to come: at least `EVENLY` divided by the number of levels, and one in all."""
    total, even = sum(worths.values()), 1 / len(worths)
    return {level: EVENLY * even + (1 - EVENLY) * (w / total if total else even) for level, w in worths.items()}


def dealt(credits: Mapping[str, float], shares: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """The level that is owed most, the first of equals; it pays with one step.

    Of n levels one is passed over at most n (n − 1) / EVENLY times in a row, however the shares change: credits sum to
    0, and none is below 1/n − 1, because who pays had at least 1/n. So none is above (n − 1)² / n, and one that is
    passed over gains EVENLY / n each time.
    """
    owed = {level: credits.get(level, 0.0) + share for level, share in shares.items()}
    chosen = max(owed, key=lambda level: round(owed[level], 9))  # roundings must not decide between equals
    return chosen, owed | {chosen: owed[chosen] - 1}
