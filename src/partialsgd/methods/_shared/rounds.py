"""Rounds of local training: they end after a number of steps, or earlier, when the measured gradients part."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from partialsgd.meters.criteria import latest, times_measured
from partialsgd.method import Context

_NUMBER, _BEGAN, _AT, _SEEN = "round", "round.began", "round.at", "round.seen."


@final
@dataclass(frozen=True)
class Rounds:
    """In a round each worker has the same number of steps, `every` at most."""

    workers: tuple[str, ...]
    every: int
    bound: float | None = None
    """A round ends early if c_align, measured for each worker in this round, is over it; None: it never does."""

    def of(self, context: Context) -> tuple[int, int]:
        """Return the number of the round that step t is in, and the first step of that round."""
        if self.bound is None:
            number = context.t // self._length
            return number, number * self._length
        number, began, at = (int(context.memory.get(key, 0)) for key in (_NUMBER, _BEGAN, _AT))
        if at == context.t or not self._is_over(context, began, self.bound):
            return number, began
        return number + 1, context.t

    def remember(self, context: Context) -> None:
        """Save the round of a step before it is taken, so that what the step measures does not change it."""
        if self.bound is None or context.memory.get(_AT) == context.t:
            return
        number, began = self.of(context)
        context.memory.update({_NUMBER: number, _BEGAN: began, _AT: context.t})
        if began == context.t:
            context.memory.update({_SEEN + worker: times_measured(context.measured, worker) for worker in self.workers})

    def starts(self, context: Context) -> bool:
        return self.of(context)[1] == context.t

    def ends(self, context: Context) -> bool:
        """True if step t, which has been measured by now, is the last of its round."""
        return self.starts(replace(context, t=context.t + 1))

    @property
    def _length(self) -> int:
        return self.every * len(self.workers)

    def _is_over(self, context: Context, began: int, bound: float) -> bool:
        steps = context.t - began
        if steps <= 0 or steps % len(self.workers) != 0:
            return False
        before = {worker: int(context.memory.get(_SEEN + worker, 0)) for worker in self.workers}
        all_measured = all(times_measured(context.measured, worker) > count for worker, count in before.items())
        return steps >= self._length or (all_measured and not self._is_aligned(context, bound))

    def _is_aligned(self, context: Context, bound: float) -> bool:
        """True if the workers' mean cosine, the inverse of c_align, is at least 1 / bound; a NaN is not."""
        cosines = [latest(context.measured, worker, "cosine") for worker in self.workers]
        return sum(math.nan if cosine is None else cosine for cosine in cosines) * bound >= len(cosines)
