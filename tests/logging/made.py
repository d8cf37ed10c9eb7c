"""Records of runs that nobody made, with what real ones seldom have."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from partialsgd.logging.metrics_log import Record


def measured(c_norm: float = 1.0, c_sim: float = 1.0, c_align: float = 1.0, **more: object) -> Record:
    cosine = 1 / c_align if c_align else math.nan
    q = c_norm * max(c_sim, c_align) if c_align > 0 else math.inf
    return {"c_norm": c_norm, "c_sim": c_sim, "c_align": c_align, "cosine": cosine, "q": q, **more}


def run(*criteria: Record | Sequence[Record], every: int = 1) -> list[Record]:
    """One step for each."""
    lists = [[one] if isinstance(one, dict) else list(one) for one in criteria]
    return [
        {"t": k * every, "level": None, "loss": {"model": 1 / (k + 1)}, "lr": 0.1, "backwards": 1, "criteria": found}
        for k, found in enumerate(lists)
    ]


def noisy(seed: int, *, count: int = 60, level: float = 2.0, negative: float = 0.0, **more: object) -> list[Record]:
    draw = random.Random(seed)

    def some() -> float:
        return 1 + level * draw.random()

    found = [(some(), some(), some() * (-1 if draw.random() < negative else 1)) for _ in range(count)]
    return run(*(measured(*three, **more) for three in found), every=5)
