"""γ_t: the factor of the learning rate as a function of the step alone, so that a resume needs no scheduler's state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

Rate: TypeAlias = Callable[[int], float]


def constant(t: int) -> float:
    return 1.0


def inverse_sqrt(warm_up: int, initial: float = 0.0) -> Rate:
    """Linear from `initial` to 1 over `warm_up` steps, then √(warm_up / n) at the n-th step (fairseq's inverse_sqrt).

    The paper's warmup_init_lr is `initial` times the largest learning rate; −1 there means 0. The first step is
    t = 0 here, and fairseq's update 0: it is made with `initial`.
    """

    def rate(t: int) -> float:
        if t < warm_up:
            return initial + (1.0 - initial) * t / warm_up
        return math.sqrt(max(warm_up, 1) / max(t, 1))

    return rate


def linear(total: int, warm_up: int = 0, initial: float = 0.0) -> Rate:
    """Linear from `initial` to 1 over `warm_up` steps, then along a line to 0 at step `total`."""

    def rate(t: int) -> float:
        if t < warm_up:
            return initial + (1.0 - initial) * t / warm_up
        return max(0.0, (total - t) / max(total - warm_up, 1))

    return rate


def cosine(total: int, warm_up: int = 0) -> Rate:
    """Linear from 0 over `warm_up` steps, then half a cosine from 1 down to 0 at step `total`."""

    def rate(t: int) -> float:
        if t < warm_up:
            return (t + 1) / (warm_up + 1)
        done = (t - warm_up) / max(total - warm_up, 1)
        return 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))

    return rate
