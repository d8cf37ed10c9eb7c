"""Learning-rate schedules as functions of the step, so that there is no scheduler state to save."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

Schedule: TypeAlias = Callable[[int], float]
"""Step t to the factor of the peak learning rate."""


def inverse_sqrt(warm_up: int, initial: float = 0.0) -> Schedule:
    """Rise linearly from `initial` to 1 over `warm_up` steps, then fall as √(warm_up / t), as fairseq's inverse_sqrt.

    The paper's warmup_init_lr is `initial` times the peak learning rate; −1 there means 0.
    """

    def factor(t: int) -> float:
        if t < warm_up:
            return initial + (1.0 - initial) * t / warm_up
        return math.sqrt(max(warm_up, 1) / max(t, 1))

    return factor


def linear(total: int, warm_up: int = 0, initial: float = 0.0) -> Schedule:
    """Rise linearly from `initial` to 1 over `warm_up` steps, then fall linearly to 0 at step `total`."""

    def factor(t: int) -> float:
        if t < warm_up:
            return initial + (1.0 - initial) * t / warm_up
        return max(0.0, (total - t) / max(total - warm_up, 1))

    return factor


def cosine(total: int, warm_up: int = 0) -> Schedule:
    """Rise linearly from 0 over `warm_up` steps, then follow half a cosine from 1 to 0 at step `total`."""

    def factor(t: int) -> float:
        if t < warm_up:
            return (t + 1) / (warm_up + 1)
        done = (t - warm_up) / max(total - warm_up, 1)
        return 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))

    return factor
